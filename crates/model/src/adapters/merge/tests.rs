use std::path::PathBuf;

use super::*;
use crate::Model;
use crate::formats::gguf::Gguf;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn open(name: &str) -> AdapterFile {
    AdapterFile::open(&golden("adapters").join(name)).unwrap()
}

/// All numbers of an adapter's products, module by module.
fn dense(file: &AdapterFile) -> Vec<Vec<f32>> {
    let of_pair = |pair: &crate::adapters::file::Pair| {
        let product = Product::read(pair).unwrap();
        let mut numbers = vec![0.0; product.rows * product.cols];
        numbers.chunks_exact_mut(product.cols).enumerate().for_each(|(row, out)| product.row(row, out));
        numbers
    };
    file.pairs.iter().map(of_pair).collect()
}

fn merged(adapters: &[(&AdapterFile, f32)], method: MergeMethod, rank: Option<usize>) -> (AdapterFile, Merged) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("merged");
    let report = merge(adapters, method, rank, &path).unwrap();
    (AdapterFile::open(&path).unwrap(), report)
}

/// The largest difference, relative to the largest number.
fn apart(got: &[Vec<f32>], want: &[Vec<f32>]) -> f32 {
    assert_eq!(got.len(), want.len());
    let most = want.iter().flatten().fold(0f32, |most, x| most.max(x.abs()));
    got.iter().flatten().zip(want.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / most
}

fn combined(all: &[(Vec<Vec<f32>>, f32)]) -> Vec<Vec<f32>> {
    let mut sum: Vec<Vec<f32>> = all[0].0.iter().map(|module| vec![0.0; module.len()]).collect();
    for (numbers, weight) in all {
        for (sum, numbers) in sum.iter_mut().flatten().zip(numbers.iter().flatten()) {
            *sum += weight * numbers;
        }
    }
    sum
}

#[test]
fn products_are_combined_and_not_the_matrices() {
    let (one, other) = (open("llama3-all"), open("llama3-patterns"));
    let both = [(&one, 1.0), (&other, 3.0)];
    let parts = |first: f32, second: f32| combined(&[(dense(&one), first), (dense(&other), second)]);
    let (stacked, report) = merged(&both, MergeMethod::Stack, None);
    assert!(apart(&dense(&stacked), &parts(1.0, 3.0)) < 1e-5);
    assert_eq!((report.rank, report.relative_error), (12, 0.0));
    assert!(apart(&dense(&merged(&both, MergeMethod::TaskArithmetic, None).0), &parts(1.0, 3.0)) < 1e-5);
    assert!(apart(&dense(&merged(&both, MergeMethod::Linear, None).0), &parts(0.25, 0.75)) < 1e-5);
    assert!(apart(&dense(&merged(&both, MergeMethod::Slerp { t: 0.0 }, None).0), &parts(1.0, 0.0)) < 1e-5);
    assert!(
        stacked.recipe.as_ref().is_some_and(|recipe| recipe.contains("stack") && recipe.contains(&one.id.to_string()))
    );
}

#[test]
fn a_rank_that_is_high_enough_loses_nothing_and_a_low_one_says_how_much() {
    let one = open("llama3-all");
    let both = [(&one, 0.5), (&one, 0.5)];
    let (same, report) = merged(&both, MergeMethod::Linear, Some(8));
    assert!(apart(&dense(&same), &dense(&one)) < 1e-4 && report.relative_error < 1e-5, "{report:?}");
    let (less, report) = merged(&[(&one, 1.0)], MergeMethod::Linear, Some(3));
    assert_eq!((less.ranks, report.rank), ((3, 3), 3));
    let (got, want) = (dense(&less), dense(&one));
    let squares = |numbers: &[Vec<f32>]| numbers.iter().flatten().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    let lost = combined(&[(want.clone(), 1.0), (got, -1.0)]);
    let error = (squares(&lost) / squares(&want)).sqrt();
    assert!((error - report.relative_error).abs() < 1e-4 && error > 0.1, "{error} and {report:?}");
}

#[test]
fn ties_and_dare_of_everything_are_what_they_are_made_of() {
    let one = open("llama3-all");
    let (ties, report) = merged(&[(&one, 1.0)], MergeMethod::Ties { density: 1.0 }, None);
    assert!(apart(&dense(&ties), &dense(&one)) < 1e-4 && report.relative_error < 1e-3, "{report:?}");
    let (dare, _) = merged(&[(&one, 1.0)], MergeMethod::Dare { density: 1.0, seed: 1 }, None);
    assert!(apart(&dense(&dare), &dense(&one)) < 1e-4);
    let half = MergeMethod::Dare { density: 0.5, seed: 1 };
    let (a, b) = (merged(&[(&one, 1.0)], half, None).0, merged(&[(&one, 1.0)], half, None).0);
    assert_eq!(a.id, b.id, "the seed decides");
    let other = MergeMethod::Dare { density: 0.5, seed: 2 };
    assert_ne!(merged(&[(&one, 1.0)], other, None).0.id, a.id);
    // Opposite products have no sign in common.
    let (none, _) = merged(&[(&one, 1.0), (&one, -1.0)], MergeMethod::Ties { density: 1.0 }, None);
    assert!(dense(&none).iter().flatten().all(|x| *x == 0.0));
}

#[test]
fn adapters_of_gguf_are_merged_into_one_of_gguf() {
    let (peft, gguf) = (open("llama3-all"), open("llama3-all/adapter.gguf"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("merged.gguf");
    let report = merge(&[(&gguf, 0.5), (&gguf, 1.0)], MergeMethod::TaskArithmetic, Some(8), &path).unwrap();
    assert!(report.rank == 8 && report.relative_error < 1e-3, "{report:?}");
    assert_eq!(report.file_bytes, std::fs::metadata(&path).unwrap().len());
    let merged = AdapterFile::open(&path).unwrap();
    assert_eq!((merged.format, merged.architecture.as_deref()), (AdapterFormat::Gguf, Some("llama")));
    assert!(merged.recipe.as_ref().is_some_and(|recipe| recipe.contains("task_arithmetic")), "{:?}", merged.recipe);
    assert!(apart(&dense(&merged), &combined(&[(dense(&gguf), 1.5)])) < 1e-4);
    // For the model it is what the same of PEFT is.
    let model = Gguf::open(golden("architectures/llama3/model.gguf")).unwrap();
    let targets = Model::load(&model, 64, &mut |_| {}).unwrap().adapter_targets();
    assert_eq!(merged.check(&targets).unwrap(), peft.check(&targets).unwrap());
    assert!(merge(&[(&gguf, 1.0)], MergeMethod::Stack, None, &path).unwrap_err().to_string().contains("already"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let one = open("llama3-qv");
    let folder = tempfile::tempdir().unwrap();
    let says = |adapters: &[(&AdapterFile, f32)], method, rank| {
        merge(adapters, method, rank, &folder.path().join("new")).unwrap_err().to_string()
    };
    assert!(says(&[], MergeMethod::Stack, None).contains("0 adapters"));
    assert!(says(&[(&one, f32::NAN)], MergeMethod::Stack, None).contains("NaN"));
    assert!(says(&[(&one, 1.0)], MergeMethod::Stack, Some(0)).contains("rank"));
    assert!(says(&[(&one, 1.0)], MergeMethod::Ties { density: 0.0 }, None).contains("density"));
    assert!(says(&[(&one, 1.0)], MergeMethod::Slerp { t: 0.5 }, None).contains("slerp"));
    assert!(says(&[(&one, 1.0), (&one, -1.0)], MergeMethod::Linear, None).contains("task_arithmetic"));
    let gguf = AdapterFile::open(&golden("adapters/llama3-all/adapter.gguf")).unwrap();
    assert!(says(&[(&one, 1.0), (&gguf, 1.0)], MergeMethod::Stack, None).contains("GGUF"));
    assert!(says(&[(&one, 1.0), (&open("llama3-activated"), 1.0)], MergeMethod::Stack, None).contains("invocation"));
    let taken = merge(&[(&one, 1.0)], MergeMethod::Stack, None, folder.path()).unwrap_err().to_string();
    assert!(taken.contains("already"), "{taken}");
}

#[test]
fn baked_weights_are_those_of_the_model_and_the_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let gguf = Gguf::open(golden("architectures/llama3/model.gguf")).unwrap();
    let targets = Model::load(&gguf, 64, &mut |_| {}).unwrap().adapter_targets();
    let one = open("llama3-qv");
    let path = folder.path().join("baked.gguf");
    let mut done = 0;
    let baked = bake(&gguf, &targets, &[(&one, 1.0)], BakedType::F32, &path, &mut |bytes| done = bytes).unwrap();
    assert_eq!((baked.tensors, baked.file_bytes), (4, std::fs::metadata(&path).unwrap().len()));
    assert!(done > 0);
    // Taken away again, the model is what it was.
    let (baked, back) = (Gguf::open(&path).unwrap(), folder.path().join("back.gguf"));
    bake(&baked, &targets, &[(&one, -1.0)], BakedType::F32, &back, &mut |_| {}).unwrap();
    let back = Gguf::open(&back).unwrap();
    let floats = |gguf: &Gguf, name: &str| {
        let tensor = gguf.tensor(name).unwrap();
        let mut floats = vec![0.0; tensor.element_count()];
        ruvllm_kernels::dequantize_row(tensor.kind, &tensor.bytes(), &mut floats);
        floats
    };
    for name in ["blk.0.attn_q.weight", "blk.1.attn_v.weight", "blk.0.ffn_up.weight"] {
        let [before, during, after] = [&gguf, &baked, &back].map(|file| floats(file, name));
        assert!(before.iter().zip(&after).all(|(a, b)| (a - b).abs() < 1e-5), "{name}");
        assert_eq!(before != during, name != "blk.0.ffn_up.weight");
    }
}
