//! Reads any bytes as the file of a KV page, and as the page in an authentic one.

use std::cell::RefCell;

use ruvllm_kv::checked::{DamagedPage, Restorer, SavedPage, opened, sealed};
use ruvllm_kv::{Namespace, PageKey};
use ruvllm_runner::PageFormat;

thread_local! {
    static MEMORY: RefCell<Restorer> = RefCell::default();
}

pub fn run(bytes: &[u8]) {
    let (key, hash) = (PageKey::new(&[7; 32]), Namespace::of(&[b"fuzz"]).root());
    if let Ok(page) = opened(&key, hash, bytes.to_vec()) {
        restore(&page);
    }
    let Some((format, page)) = bytes.split_first() else { return };
    let format = PageFormat::all().nth(usize::from(*format) % PageFormat::all().count()).expect("within their number");
    let page = SavedPage { format: Some(format), bytes: page.to_vec() };
    restore(&page);
    let mut file = sealed(&key, hash, &page).expect("small enough");
    assert_eq!(opened(&key, hash, file.clone()), Ok(page));
    // No byte of it may change.
    let at = bytes.iter().fold(bytes.len(), |sum, byte| sum.wrapping_mul(31) + usize::from(*byte)) % file.len();
    file[at] ^= 1;
    assert!(matches!(opened(&key, hash, file), Err(DamagedPage::NotAPage | DamagedPage::NotAuthentic)));
}

fn restore(page: &SavedPage) {
    MEMORY.with_borrow_mut(|memory| memory.restore(page));
}
