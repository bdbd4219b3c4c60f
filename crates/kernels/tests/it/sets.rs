//! Which kernel sets there are on this processor.

use ruvllm_kernels::{KernelSet, Pool};

#[test]
fn sets_are_found_by_name_and_the_best_is_one_of_the_available() {
    let available: Vec<KernelSet> = KernelSet::available().collect();
    println!("available: {}", available.iter().map(|set| set.name()).collect::<Vec<_>>().join(" "));
    for set in KernelSet::ALL {
        assert_eq!(KernelSet::from_name(set.name()), Some(set));
        assert_eq!(available.contains(&set), set.is_available());
    }
    assert_eq!(KernelSet::from_name("sse9"), None);
    assert_eq!(available.first(), Some(&KernelSet::Scalar));
    assert_eq!(available.last(), Some(&KernelSet::best()));
}

#[test]
fn a_pool_is_refused_where_the_processor_lacks_the_instructions() {
    for set in KernelSet::ALL {
        let outcome = std::panic::catch_unwind(|| Pool::new(1, set).threads());
        assert_eq!(outcome.ok(), set.is_available().then_some(1), "{}", set.name());
    }
}
