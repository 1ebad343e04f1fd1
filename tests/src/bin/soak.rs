//! `soak HOSTS OPERATIONS SEED [LATENCY_MS] [slow] [WITHOUT...]`: started by `hack/soak` in private namespaces.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "test code, whose product is what it prints"
)]

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Duration,
};

use e2e::{
    SlowService,
    soak::{Hazard, Outcome, Soak},
};

/// Argument for a slow service.
const SLOW: &str = "slow";
/// Operations between two progress lines.
const PROGRESS: usize = 500;

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1).peekable();
    let mut number = |what| arguments.next().expect(what).parse::<u64>().expect("a number");
    let size = |number: u64| usize::try_from(number).expect("that fits");
    let (hosts, operations) = (size(number("how many hosts")), size(number("how many operations")));
    let seed = number("a seed");
    let latency = arguments.next_if(|argument| argument.starts_with(char::is_numeric));
    let latency = latency.map_or(0, |latency| latency.parse().expect("milliseconds"));
    let is_slow = arguments.next_if(|argument| argument == SLOW).is_some();
    let without: Vec<Hazard> = arguments.map(|name| name.parse().expect("a hazard")).collect();
    let hazards: Vec<_> = Hazard::ALL.into_iter().filter(|one| !without.contains(one)).collect();
    let slowly = if is_slow { " with a slow service" } else { "" };
    let how = with_latency(latency) + slowly + &left_out(&without);
    println!("{operations} operations of seed {seed} on {hosts} hosts{how}");
    let slow = match is_slow.then(|| SlowService::make("")).transpose() {
        Ok(slow) => slow,
        Err(reason) => {
            println!("{reason}");
            return ExitCode::FAILURE;
        }
    };
    let mut soak = Soak::start(hosts, operations, seed, &hazards, slow.as_ref());
    soak.delay(Duration::from_millis(latency));
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

fn with_latency(latency: u64) -> String {
    if latency == 0 { String::new() } else { format!(" with {latency} ms each way") }
}

fn left_out(without: &[Hazard]) -> String {
    let names: Vec<_> = without.iter().map(Hazard::to_string).collect();
    if names.is_empty() { String::new() } else { format!(" without {}", names.join(", ")) }
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
        println!("{}{place}", outcome.violations());
    }
    for change in outcome.refused_changes() {
        println!("this kernel lets no pod do: {change}");
    }
    println!("{outcome}");
    if outcome.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
