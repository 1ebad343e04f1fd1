//! `soak OPERATIONS SEED`, which `hack/soak` starts in private namespaces.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "test code, whose product is what it prints"
)]

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
};

use e2e::soak::{Outcome, Soak};

/// Operations between two lines that tell how far it is.
const PROGRESS: usize = 500;

fn main() -> ExitCode {
    let mut numbers = env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let mut number = |what| numbers.next().expect(what);
    let (operations, seed) = (number("how many operations"), number("a seed"));
    println!("{operations} operations of seed {seed}");
    let mut soak = Soak::start(usize::try_from(operations).expect("that fit"), seed);
    let folder = soak.folder();
    let advanced = catch_unwind(AssertUnwindSafe(|| advance(&mut soak)));
    let place = format!("seed {seed}, round {}; logs in {}", soak.rounds(), folder.display());
    let outcome = advanced.and_then(|()| catch_unwind(AssertUnwindSafe(|| soak.end())));
    match outcome {
        Ok(outcome) => tell(&outcome, &place),
        Err(_) => {
            println!("could not go on: {place}");
            ExitCode::FAILURE
        }
    }
}

fn advance(soak: &mut Soak) {
    while soak.advance() {
        if soak.operations().is_multiple_of(PROGRESS) {
            println!("{}", soak.progress());
        }
    }
}

fn tell(outcome: &Outcome, place: &str) -> ExitCode {
    if !outcome.is_good() {
        println!("{}{place}", outcome.breaches());
    }
    println!("{outcome}");
    if outcome.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
