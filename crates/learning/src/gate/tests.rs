use super::*;
use crate::random::Random;

/// Losses of as many documents, of one to three items each, that are harder or easier for everybody; the candidate's
/// differ from the model's by `gain`, and by chance from document to document.
struct World {
    documents: Vec<u64>,
    base: Vec<Loss>,
    candidate: Vec<Loss>,
}

fn world(random: &mut Random, documents: usize, gain: f64, noise: f64) -> World {
    let mut world = World { documents: Vec::new(), base: Vec::new(), candidate: Vec::new() };
    for document in 0..documents {
        let (hardness, effect) = (2.0 + random.unit(), gain + noise * random.normal());
        for _ in 0..=random.below(3) {
            let targets = 20 + random.below(60);
            let base = hardness + 0.2 * random.normal();
            world.documents.push(document as u64);
            world.base.push(Loss { sum: base * targets as f64, targets });
            world.candidate.push(Loss { sum: base * (1.0 + effect) * targets as f64, targets });
        }
    }
    world
}

fn general(rise: f64) -> [Vec<Loss>; 2] {
    [1.0, 1.0 + rise].map(|factor| vec![Loss { sum: 1000.0 * factor, targets: 400 }; 10])
}

const OPTIONS: GateOptions = GateOptions { resamples: 1000, seed: 7, confidence: 0.95, general_rise_max: 0.005 };

fn judged(world: &World, served: Option<&[Loss]>, baselines: &[(&'static str, Vec<Loss>)], rise: f64) -> Report {
    let [base, candidate] = general(rise);
    let World { documents, base: of_base, candidate: of_candidate } = world;
    let held_out = HeldOut { documents, base: of_base, served, candidate: of_candidate, baselines };
    judge(&held_out, (&base, &candidate), OPTIONS).expect("they are paired")
}

fn promoted_share(worlds: usize, documents: usize, gain: f64) -> f64 {
    let mut random = Random::new(documents as u64);
    let promoted = (0..worlds).filter(|_| {
        let world = world(&mut random, documents, gain, 0.05);
        judged(&world, None, &[], 0.0).verdict == Verdict::Promoted
    });
    promoted.count() as f64 / worlds as f64
}

/// Half of the 5 % that an interval of 95 % leaves out are gains.
#[test]
fn without_a_gain_promotions_are_as_rare_as_the_confidence_says() {
    for (documents, max) in [(6, 0.045), (12, 0.045), (40, 0.04)] {
        let share = promoted_share(1000, documents, 0.0);
        assert!(share <= max, "{share} of candidates without a gain on {documents} documents are promoted");
    }
    let lost = promoted_share(200, 20, 0.02);
    assert!(lost <= 0.005, "{lost}");
}

#[test]
fn a_gain_that_is_larger_than_chance_is_promoted() {
    assert!(promoted_share(200, 20, -0.08) > 0.99);
    assert!(promoted_share(200, 100, -0.02) > 0.9);
}

#[test]
fn what_is_served_now_has_to_be_beaten_and_the_model_does_not() {
    let world = world(&mut Random::new(1), 20, -0.1, 0.01);
    let better: Vec<Loss> = world.candidate.iter().map(|loss| Loss { sum: loss.sum * 0.9, ..*loss }).collect();
    let report = judged(&world, Some(&better), &[], 0.0);
    assert_eq!(report.verdict, Verdict::Refused);
    assert_eq!(report.reasons.len(), 1);
    assert!(report.reasons[0].starts_with("it is not better than served: +11"), "{:?}", report.reasons);
    let required: Vec<bool> = report.comparisons.iter().map(|one| one.is_required).collect();
    assert_eq!(required, [false, true]);
    assert!(report.comparisons[0].interval.high < 0.0, "figures of the model are kept");
    let worse: Vec<Loss> = world.base.iter().map(|loss| Loss { sum: loss.sum * 1.1, ..*loss }).collect();
    assert_eq!(judged(&world, Some(&worse), &[], 0.0).verdict, Verdict::Promoted);
}

#[test]
fn a_baseline_that_does_as_well_refuses() {
    let world = world(&mut Random::new(2), 30, -0.1, 0.01);
    let as_good = ("examples", world.candidate.clone());
    let weak = ("ngram", world.base.clone());
    assert_eq!(judged(&world, None, std::slice::from_ref(&weak), 0.0).verdict, Verdict::Promoted);
    let report = judged(&world, None, &[weak, as_good], 0.0);
    assert_eq!(report.verdict, Verdict::Refused);
    assert_eq!(report.reasons, ["it is not better than examples: +0.00 % loss"]);
}

#[test]
fn general_texts_may_become_a_little_harder_and_no_more() {
    let world = world(&mut Random::new(3), 30, -0.1, 0.01);
    assert_eq!(judged(&world, None, &[], 0.0049).verdict, Verdict::Promoted);
    let report = judged(&world, None, &[], 0.0051);
    assert_eq!(report.verdict, Verdict::Refused);
    assert_eq!(report.reasons, ["the loss on general texts rises by 0.51 %; at most 0.5 % are allowed"]);
    assert_eq!(report.general.targets, 4000);
}

#[test]
fn the_same_figures_give_the_same_report() {
    let world = world(&mut Random::new(4), 12, -0.01, 0.05);
    let report = judged(&world, None, &[], 0.0);
    assert_eq!(report, judged(&world, None, &[], 0.0));
    assert!(report.reasons[0].contains("may be chance") || report.verdict == Verdict::Promoted, "{report:?}");
}

#[test]
fn what_cannot_be_compared_is_an_error() {
    let world = world(&mut Random::new(5), 8, 0.0, 0.01);
    let [base, candidate] = general(0.0);
    let whole = HeldOut {
        documents: &world.documents,
        base: &world.base,
        served: None,
        candidate: &world.candidate,
        baselines: &[],
    };
    let judged = |held_out: HeldOut<'_>, options| judge(&held_out, (&base, &candidate), options).unwrap_err();
    let short = HeldOut { base: &world.base[1..], ..whole.clone() };
    assert!(matches!(judged(short, OPTIONS), GateError::Unpaired { .. }));
    let one = vec![3; world.documents.len()];
    assert_eq!(judged(HeldOut { documents: &one, ..whole.clone() }, OPTIONS), GateError::TooFew { documents: 1 });
    let mut broken = world.candidate.clone();
    broken[0].sum = f64::NAN;
    let broken = HeldOut { candidate: &broken, ..whole.clone() };
    assert!(matches!(judged(broken, OPTIONS), GateError::NotFinite { .. }));
    let few = GateOptions { resamples: 10, ..OPTIONS };
    assert_eq!(judged(whole.clone(), few), GateError::Resamples { resamples: 10 });
    assert_eq!(judge(&whole, (&[], &[]), OPTIONS).unwrap_err(), GateError::NoGeneral);
}
