//! Fairness: a busy host leaves the others their share.

use std::{sync::Arc, time::Duration};

use dpu_service::{
    attachments::Engine,
    host::{Asked, HostTime, SessionId},
};
use futures::future::join_all;
use test_clock::Stopwatch;

use crate::{
    other_host::{OtherHost, for_both, on_green},
    world::{World, detach_of, settings, spec},
};

/// ADDs of the busy host in flight at any time: far more than sixteen a second.
const BURST: usize = 16;
/// Number of timed ADDs of the other host.
const TIMED: usize = 50;
/// How long each change holds the kernel's lock.
const HELD: Duration = Duration::from_millis(2);

/// Duration of an ADD: the median, because other work on the machine shows in the tail.
async fn adds(host: &OtherHost) -> Duration {
    let mut taken = Vec::new();
    for number in 0..TIMED {
        let add = on_green(&format!("other-{number}"));
        let begun = Stopwatch::start();
        host.attach(add.clone()).await.unwrap();
        taken.push(begun.elapsed());
        host.detach(add).await;
    }
    taken.sort();
    taken[TIMED / 2]
}

/// Attaches and detaches a burst of pods, again and again.
async fn burst_without_end(engine: &Arc<Engine>, session: SessionId) {
    let asked = Asked { session, as_of: HostTime::default() };
    loop {
        let names = (0..BURST).map(|number| format!("busy-{number}")).collect::<Vec<_>>();
        let added = join_all(names.iter().map(|name| engine.attach(spec(name), asked))).await;
        added.into_iter().for_each(|added| drop(added.unwrap()));
        let ended = join_all(names.iter().map(|name| engine.detach(detach_of(name)))).await;
        ended.into_iter().for_each(|ended| ended.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_host_leaves_others_half() {
    let world = World::with(for_both(), settings(), 32).await;
    let other = OtherHost::connect(&world).await;
    world.kernel.slow_down(HELD);
    let alone = adds(&other).await;
    let (engine, session) = (Arc::clone(&world.engine), world.session.id);
    let busy = tokio::spawn(async move { burst_without_end(&engine, session).await });
    let beside = adds(&other).await;
    busy.abort();
    // With half of the kernel an ADD takes twice as long; the rest allows for other programs. An unfair lock would let
    // all changes of a burst go first.
    assert!(beside <= 3 * alone, "{beside:?} beside a busy host, {alone:?} alone");
}
