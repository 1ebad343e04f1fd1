//! A look at a thousand ports as the reconciler takes it: what all ports share, one look at all, and a close one at each.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use drivers::{eswitch::Eswitch, programmer::Programmer};
use model::PortSettings;

use crate::{
    median,
    support::TestNetns,
    time,
    veth_dpu::{Dpu, On, settings_of},
};

const PORTS: u16 = 1000;
const DRIFTED: usize = 100;
const ROUNDS: usize = 3;

pub(crate) fn print() {
    for on in On::EVERY {
        let mut dpu = Dpu::on(on, &[]);
        let host = TestNetns::new();
        let ports: Vec<_> = (0..PORTS).map(settings_of).collect();
        for (number, port) in ports.iter().enumerate() {
            dpu.plug_as(&format!("vf{number}"), &host, port);
        }
        // Ends after the fabric.
        let _vswitch = dpu.vswitch.take();
        let fabric = dpu.fabric;
        let eswitch: Arc<dyn Eswitch> = Arc::new(dpu.eswitch);
        let programmer = Programmer::new(Arc::clone(&eswitch), Arc::clone(&fabric));
        let reconcile = || reconcile(&programmer, &dpu.netns, &ports);
        let first = time(|| assert_eq!(reconcile(), ports.len()));
        let (mut in_place, mut drifted) = (Vec::<Duration>::new(), Vec::new());
        for _ in 0..ROUNDS {
            in_place.push(time(|| assert_eq!(reconcile(), 0)));
            let taken_out: Vec<_> = ports.iter().step_by(usize::from(PORTS) / DRIFTED).collect();
            together(&programmer, &dpu.netns, &taken_out, |port| {
                let representor = eswitch.representor(port.vf).unwrap().unwrap();
                fabric.leave(&representor).unwrap();
            });
            drifted.push(time(|| assert_eq!(reconcile(), DRIFTED)));
        }
        let [in_place, drifted] = [in_place, drifted].map(|all| median(all.into_iter()));
        println!(
            "{on:?}, {PORTS} ports: all in place {in_place:.1?}, {DRIFTED} of them taken out {drifted:.1?}, all to be \
             joined {first:.1?}"
        );
    }
}

/// How many were not as they should be.
fn reconcile(programmer: &Programmer, netns: &TestNetns, ports: &[PortSettings]) -> usize {
    netns.netns.run(|| programmer.prepare()).unwrap().unwrap();
    let repaired = AtomicUsize::new(0);
    together(programmer, netns, ports, |port| {
        let steps = programmer.repair(port).unwrap().steps;
        repaired.fetch_add(usize::from(!steps.is_empty()), Ordering::Relaxed);
    });
    repaired.into_inner()
}

/// As many at a time as the reconciler works at.
fn together<T: Sync>(
    programmer: &Programmer,
    netns: &TestNetns,
    all: &[T],
    work: impl Fn(&T) + Sync,
) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(one);
        }
    };
    std::thread::scope(|scope| {
        (0..programmer.together())
            .for_each(|_| drop(scope.spawn(|| netns.netns.run(work).unwrap())));
    });
}
