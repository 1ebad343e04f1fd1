//! Random histories: the invariants hold after each step, whatever the order.

use std::{cell::Cell, sync::Arc};

use dpu_service::{
    attachments::{Depth, Detach},
    host::{Hello, LiveAttachment},
};
use journal::faulty_disk::Fate;
use model::Phase;
use proptest::{prelude::*, test_runner::TestRunner};

use crate::{
    fake_kernel::DOING,
    world::{VFS, World, detach_of, hello, host, inventory, key, live, requesting, spec},
};

/// Number of random histories.
const HISTORIES: u32 = 48;

#[derive(Clone, Debug)]
enum Action {
    Attach { container: u8 },
    AttachAddress { container: u8, last: u8 },
    AttachFailing { container: u8, step: usize },
    AttachOnFullDisk { container: u8 },
    Attached { container: u8 },
    Detach { container: u8, returned: bool },
    DetachOnFullDisk { container: u8 },
    Release { container: u8 },
    Collect { valid: u8 },
    Inventory,
    ChangePort { vf: u16 },
    MakeAnew { vf: u16 },
    Hello { lost: u8, in_pod: bool },
    HostReboots,
    Restart,
    PowerCut { after: usize, fates: Vec<Fate>, attach: u8, detach: u8 },
}

fn action() -> impl Strategy<Value = Action> {
    let container = || 0..6u8;
    prop_oneof![
        6 => container().prop_map(|container| Action::Attach { container }),
        2 => (container(), 2..6u8)
            .prop_map(|(container, last)| Action::AttachAddress { container, last }),
        2 => (container(), 0..DOING.len())
            .prop_map(|(container, step)| Action::AttachFailing { container, step }),
        1 => container().prop_map(|container| Action::AttachOnFullDisk { container }),
        3 => container().prop_map(|container| Action::Attached { container }),
        4 => (container(), any::<bool>())
            .prop_map(|(container, returned)| Action::Detach { container, returned }),
        1 => container().prop_map(|container| Action::DetachOnFullDisk { container }),
        1 => container().prop_map(|container| Action::Release { container }),
        1 => container().prop_map(|valid| Action::Collect { valid }),
        2 => Just(Action::Inventory),
        1 => (0..VFS).prop_map(|vf| Action::ChangePort { vf }),
        1 => (0..VFS).prop_map(|vf| Action::MakeAnew { vf }),
        1 => (container(), any::<bool>())
            .prop_map(|(lost, in_pod)| Action::Hello { lost, in_pod }),
        1 => Just(Action::HostReboots),
        1 => Just(Action::Restart),
        2 => (0..24usize, proptest::collection::vec(fate(), 24), container(), container()).prop_map(
            |(after, fates, attach, detach)| Action::PowerCut { after, fates, attach, detach },
        ),
    ]
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![Just(Fate::Lost), Just(Fate::Kept), (1..8usize).prop_map(Fate::Torn)]
}

fn name(container: u8) -> String {
    container.to_string()
}

/// The host's attachments, except the one that it has lost.
fn live_but(world: &World, lost: Option<u8>) -> Vec<LiveAttachment> {
    let lost = lost.map(|lost| key(&name(lost)));
    let views = world.list();
    let known = views.iter().filter(|view| Some(&view.record.key) != lost.as_ref());
    known.map(|view| live(view, true)).collect()
}

async fn act(world: &mut World, action: Action) {
    match action {
        Action::Attach { container } => {
            let _ = world.attach(spec(&name(container))).await;
        }
        Action::AttachAddress { container, last } => {
            let addresses = vec![format!("10.1.0.{last}").parse().unwrap()];
            let _ = world
                .attach(requesting(spec(&name(container)), |it| it.addresses = addresses))
                .await;
        }
        Action::AttachFailing { container, step } => {
            world.kernel.refuse(DOING[step], 1);
            let _ = world.attach(spec(&name(container))).await;
            world.kernel.refuse(DOING[step], 0);
        }
        Action::AttachOnFullDisk { container } => {
            world.set_full(true);
            let _ = world.attach(spec(&name(container))).await;
            world.set_full(false);
        }
        Action::Attached { container } => {
            let views = world.list();
            let view = views.iter().find(|view| view.record.key == key(&name(container)));
            if let Some(view) = view {
                world.engine.hosts().attached(&host(), world.session_id(), view.record.id);
            }
        }
        Action::Detach { container, returned } => {
            let detach = Detach { returned, ..detach_of(&name(container)) };
            world.engine.detach(detach).await.unwrap();
        }
        Action::DetachOnFullDisk { container } => {
            world.set_full(true);
            let _ = world.engine.detach(detach_of(&name(container))).await;
            world.set_full(false);
        }
        Action::Release { container } => {
            let views = world.list();
            let view = views.iter().find(|view| view.record.key == key(&name(container)));
            if let Some(view) = view {
                world
                    .engine
                    .operators()
                    .release(view.record.id, false, "random".into())
                    .await
                    .unwrap();
            }
        }
        Action::Collect { valid } => {
            world.engine.collect(host(), None, vec![key(&name(valid))]).await.unwrap();
        }
        Action::Inventory => {
            let clean = inventory(&world.kernel, &[]);
            world.send_inventory(&clean).await;
        }
        Action::ChangePort { vf } => {
            world.kernel.change_port(vf_alloc::FunctionId::local(0, vf), |port| {
                port.membership = Some(drivers::fabric::Membership::default());
            });
            world.engine.reconcile(Depth::Thorough).await;
        }
        Action::MakeAnew { vf } => {
            world.kernel.make(vf_alloc::FunctionId::local(0, vf));
            world.engine.reconcile(Depth::Quick).await;
        }
        Action::Hello { lost, in_pod } => {
            let live = live_but(world, Some(lost));
            if in_pod {
                let in_use: Vec<_> = world.list().iter().map(|view| view.record.vf).collect();
                let hello = hello(&world.kernel, &world.boot_id, &in_use);
                world.connect(Hello { live, ..hello }).await;
            } else {
                world.hello(&live).await;
            }
        }
        Action::HostReboots => {
            world.boot_id.push('+');
            world.hello(&[]).await;
        }
        Action::Restart => {
            world.restart().await;
            recover(world, None).await;
        }
        Action::PowerCut { after, fates, attach, detach } => {
            power_cut(world, after, fates, attach, detach).await;
        }
    }
}

async fn recover(world: &mut World, lost: Option<u8>) {
    world.engine.reconcile(Depth::Thorough).await;
    let live = live_but(world, lost);
    world.hello(&live).await;
}

/// Cuts the power after `after` more writes, during an attach and a detach. Confirmed changes survive.
async fn power_cut(world: &mut World, after: usize, fates: Vec<Fate>, attach: u8, detach: u8) {
    let before = world.list();
    let mut confirmed: Vec<_> = before.iter().map(|view| Arc::clone(&view.record)).collect();
    confirmed.retain(|record| record.phase == Phase::Held);
    world.disk.as_ref().unwrap().cut_power_after(after);
    let attached = world.attach(spec(&name(attach))).await;
    // The journal may hold a failed attach until the host reports that it has no such attachment.
    let lost = attached.is_err().then_some(attach);
    confirmed.extend(attached.map(|attached| attached.record));
    let detached = world.engine.detach(detach_of(&name(detach))).await;
    confirmed.retain(|record| record.key != key(&name(detach)));

    let mut fates = fates.into_iter();
    world.restart_after_power_cut(|| fates.next().unwrap_or(Fate::Lost)).await;
    for record in confirmed {
        let views = world.list();
        let found = views.iter().find(|view| view.record.key == record.key).unwrap();
        assert_eq!(found.record, record);
    }
    recover(world, lost).await;
    if detached.is_ok() {
        assert_eq!(world.state(&name(detach)), None);
    }
}

/// The journal has the record, the next write fails, and the power fails before the record is deleted.
#[tokio::test]
async fn failed_attach_ends_after_a_power_cut() {
    for after in 0..24 {
        live_through(vec![
            Action::AttachOnFullDisk { container: 0 },
            Action::AttachFailing { container: 0, step: 2 },
            Action::Attach { container: 1 },
            Action::Attach { container: 1 },
            Action::PowerCut { after, fates: Vec::new(), attach: 0, detach: 0 },
        ])
        .await;
    }
}

/// Runs one history and checks each step.
async fn live_through(actions: Vec<Action>) {
    let mut world = World::new().await;
    for action in actions {
        act(&mut world, action).await;
        world.check();
    }
    // Finally everything can be released.
    for container in 0..6 {
        world.detach(&name(container)).await;
    }
    world.check();
    assert!(world.list().is_empty());
}

#[test]
fn the_invariants_hold_after_each_step() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let config =
        ProptestConfig { cases: HISTORIES, failure_persistence: None, ..Default::default() };
    let (steps, cuts) = (Cell::new(0), Cell::new(0));
    let histories = proptest::collection::vec(action(), 1..40);
    let result = TestRunner::new(config).run(&histories, |actions| {
        let is_cut = |action: &&Action| matches!(action, Action::PowerCut { .. });
        steps.set(steps.get() + actions.len());
        cuts.set(cuts.get() + actions.iter().filter(is_cut).count());
        runtime.block_on(live_through(actions));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    println!("figure: {} steps of the service's random histories", steps.get());
    println!("figure: {} power cuts amid the service's attaches and detaches", cuts.get());
}
