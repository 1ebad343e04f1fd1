//! Attaches per second with a real journal on a real disk and a card in memory: one caller against
//! many, whose records share transactions.
//!
//! Then what mapped ports cost.
//!
//! `cargo bench -p dpu-service --bench attach`. The ratio matters; the figures are the disk's.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may")]
#![allow(dead_code, unreachable_pub, reason = "modules of the tests, of which it uses its part")]

#[path = "../../tests/engine/fake_kernel/mod.rs"]
mod fake_kernel;
mod mapped;
#[path = "../../tests/engine/world.rs"]
mod world;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use world::{World, configuration, detach_of, settings, spec};

const LASTS: Duration = Duration::from_secs(3);
const MANY: u16 = 64;

#[tokio::main]
async fn main() {
    let world = Arc::new(World::on(None, configuration(), settings(), MANY).await);
    let one = rate(&world, 1).await;
    let many = rate(&world, MANY).await;
    println!("1 caller:   {one:8.0} attaches/s, each with its detach");
    println!("{MANY} callers: {many:8.0} attaches/s, {:.1} times as many", many / one);
    mapped::print().await;
}

async fn rate(world: &Arc<World>, callers: u16) -> f64 {
    let begin = Instant::now();
    let callers: Vec<_> = (0..callers).map(|n| tokio::spawn(call(world.clone(), n))).collect();
    let mut attaches = 0;
    for caller in callers {
        attaches += caller.await.unwrap();
    }
    f64::from(attaches) / begin.elapsed().as_secs_f64()
}

async fn call(world: Arc<World>, caller: u16) -> u32 {
    let end = Instant::now() + LASTS;
    let mut attaches = 0;
    while Instant::now() < end {
        let container = format!("{caller}-{attaches}");
        world.attach(spec(&container)).await.unwrap();
        world.engine.detach(detach_of(&container)).await.unwrap();
        attaches += 1;
    }
    attaches
}
