//! Faults during the calls.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;

use super::{
    caller::Common,
    plan::{Fault, Trouble},
};
use crate::{
    FaultAction, Stopwatch, eventually,
    fault_target::FaultTarget,
    machines::Machines,
    process::{kill_points, steps},
    proxy as network, wait_for,
};

/// Interval between looks at an armed fault.
const PAUSE: Duration = Duration::from_millis(5);
/// Timeout for the death of a program after a fault, and for plugging in a card.
const LIMIT: Duration = Duration::from_secs(30);
/// Typical time in which a running service reloads its configuration.
const RELOAD: Duration = Duration::from_millis(100);
/// The point that an agent passes between its request and the speculative move.
const MOVED: &str = "attach-speculation-recorded";
/// VFs of each host that every second change removes from the pool.
const LEFT_OUT: u32 = 1;

/// Counts of faults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FaultCounts {
    pub(crate) kills: u64,
    /// Armed kills at points and failures of steps.
    pub(crate) armed: u64,
    /// Those of them that struck.
    pub(crate) struck: u64,
    pub(crate) cuts: u64,
    pub(crate) delays: u64,
    pub(crate) failed_steps: u64,
    pub(crate) resets: u64,
    pub(crate) suspensions: u64,
}

/// Kill points and steps of one program.
#[derive(Debug)]
struct Places {
    points: Vec<String>,
    steps: Vec<String>,
}

/// Kill points and steps of agents and service, as the programs list them.
#[derive(Debug)]
pub(crate) struct Points {
    agent: Places,
    service: Places,
}

impl Points {
    pub(crate) fn ask() -> Self {
        let places = |fault_target: FaultTarget| Places {
            points: kill_points(fault_target.program()),
            steps: steps(fault_target.program()),
        };
        Self { agent: places(FaultTarget::Agent(0)), service: places(FaultTarget::Service) }
    }

    fn name(&self, fault_target: FaultTarget, action: FaultAction, number: usize) -> &str {
        let places = match fault_target {
            FaultTarget::Agent(_) => &self.agent,
            FaultTarget::Service => &self.service,
        };
        let names = match action {
            FaultAction::Kill => &places.points,
            FaultAction::Fail => &places.steps,
        };
        &names[number % names.len()]
    }
}

/// An armed fault.
struct Armed {
    fault_target: FaultTarget,
    action: FaultAction,
    file: PathBuf,
}

impl Armed {
    fn kills(&self, fault_target: FaultTarget) -> bool {
        self.action == FaultAction::Kill && self.fault_target == fault_target
    }

    fn has_struck(&self) -> bool {
        !self.file.exists()
    }
}

/// Injects faults.
pub(crate) struct Chaos<'a> {
    pub(crate) machines: Machines<'a>,
    pub(crate) points: &'a Points,
    pub(crate) fault_counts: &'a mut FaultCounts,
    pub(crate) common: &'a Common,
}

impl Chaos<'_> {
    /// Injects all faults in turn, and watches the programs until the callers are `done`. Afterwards everything runs
    /// again.
    pub(crate) fn wreak(&mut self, faults: &[Fault], done: &AtomicBool) {
        let mut armed = Vec::new();
        for fault in faults {
            self.watch(&mut armed, fault.after, || false);
            self.strike(*fault, &mut armed);
        }
        self.watch(&mut armed, Duration::MAX, || done.load(Ordering::Acquire));
        self.disarm(armed);
    }

    fn strike(&mut self, Fault { trouble, lasting, .. }: Fault, armed: &mut Vec<Armed>) {
        match trouble {
            Trouble::Kill(fault_target) => {
                self.kill(fault_target, armed);
                thread::park_timeout(lasting);
                self.machines.start(fault_target);
            }
            Trouble::KillAtPoint(fault_target, point) => {
                armed.push(self.arm(fault_target, FaultAction::Kill, point));
            }
            Trouble::FailStep(fault_target, step) => {
                armed.push(self.arm(fault_target, FaultAction::Fail, step));
            }
            Trouble::Cut(host) => self.cut(host, lasting),
            Trouble::Delay(host) => self.delay(host, lasting),
            Trouble::ResetCard(host) => self.reset_card(host),
            Trouble::RebootDpu => self.reboot_dpu(armed),
            Trouble::Suspend(fault_target) => self.suspend(fault_target, lasting),
            Trouble::Reload => self.machines.reload(),
            Trouble::ChangePool => self.change_pool(lasting),
        }
    }

    fn reboot_dpu(&mut self, armed: &mut Vec<Armed>) {
        self.kill(FaultTarget::Service, armed);
        (0..self.machines.hosts.len()).for_each(|host| self.reset_card(host));
        self.machines.start(FaultTarget::Service);
    }

    /// Kills a program. An armed fault may already have killed it.
    fn kill(&mut self, fault_target: FaultTarget, armed: &mut Vec<Armed>) {
        self.machines.program(fault_target).crash();
        self.fault_counts.kills += 1;
        armed.retain(|fault| !(fault.kills(fault_target) && fault.has_struck()));
    }

    fn cut(&mut self, host: usize, lasting: Duration) {
        let dpu = &self.machines.dpu.netns;
        let own = self.machines.hosts[host].card.management_link();
        // A card that was just reset has no connection yet.
        wait_for("the management link", LIMIT, || {
            dpu.json("ip", &["link"]).iter().any(|link| link["ifname"] == own).then_some(())
        });
        dpu.ip(&["link", "set", &own, "down"]);
        self.fault_counts.cuts += 1;
        thread::park_timeout(lasting);
        dpu.ip(&["link", "set", &own, "up"]);
    }

    fn delay(&mut self, host: usize, lasting: Duration) {
        let proxy = self.machines.hosts[host].proxy.expect("a proxied lab");
        proxy.strike(network::Fault::Hold);
        self.fault_counts.delays += 1;
        thread::park_timeout(lasting);
        proxy.heal();
    }

    /// Removes VFs from the pool. The hosts keep using earlier offers until one of them has moved a VF in vain.
    fn change_pool(&mut self, at_most: Duration) {
        let strike = |proxy: &network::Proxy| proxy.strike(network::Fault::HoldDown);
        self.proxies().for_each(strike);
        self.machines.configure_service(|settings| {
            let is_whole = settings.pool == settings.vfs;
            settings.pool = settings.vfs - if is_whole { LEFT_OUT } else { 0 };
        });
        // A move before the service has reloaded may still be right.
        thread::park_timeout(RELOAD);
        let traces = self.machines.trace_agents();
        let has_moved = |trace: &PathBuf| fs::read_to_string(trace).unwrap().contains(MOVED);
        eventually(at_most, || traces.iter().any(has_moved).then_some(()));
        traces.iter().for_each(|trace| fs::remove_file(trace).unwrap());
        self.proxies().for_each(network::Proxy::heal);
    }

    fn proxies(&self) -> impl Iterator<Item = &network::Proxy> {
        self.machines.hosts.iter().map(|host| host.proxy.expect("a proxied lab"))
    }

    fn suspend(&mut self, fault_target: FaultTarget, lasting: Duration) {
        self.machines.program(fault_target).signal(Signal::SIGSTOP);
        self.fault_counts.suspensions += 1;
        thread::park_timeout(lasting);
        self.machines.program(fault_target).signal(Signal::SIGCONT);
    }

    fn reset_card(&mut self, host: usize) {
        self.common.note_reset();
        self.machines.reset_card(host);
        self.fault_counts.resets += 1;
    }

    fn arm(&mut self, fault_target: FaultTarget, action: FaultAction, number: usize) -> Armed {
        let file =
            self.machines.arm(fault_target, action, self.points.name(fault_target, action, number));
        self.fault_counts.armed += 1;
        Armed { fault_target, action, file }
    }

    /// Restarts programs that armed faults have killed, for some time or until it is over.
    fn watch(&mut self, armed: &mut Vec<Armed>, time: Duration, is_over: impl Fn() -> bool) {
        let start = Stopwatch::start();
        while start.elapsed() < time && !is_over() {
            let (struck, waiting): (Vec<_>, _) = armed.drain(..).partition(Armed::has_struck);
            *armed = waiting;
            self.note_struck(&struck);
            thread::park_timeout(PAUSE);
        }
    }

    fn note_struck(&mut self, struck: &[Armed]) {
        self.fault_counts.struck += struck.len() as u64;
        self.fault_counts.failed_steps +=
            struck.iter().filter(|fault| fault.action == FaultAction::Fail).count() as u64;
        let agents = (0..self.machines.hosts.len()).map(FaultTarget::Agent);
        for fault_target in agents.chain([FaultTarget::Service]) {
            if struck.iter().any(|fault| fault.kills(fault_target)) {
                let program = self.machines.program(fault_target);
                wait_for("a program to die of its fault", LIMIT, || program.ended());
                self.fault_counts.kills += 1;
                self.machines.start(fault_target);
            }
        }
    }

    fn disarm(&mut self, armed: Vec<Armed>) {
        let took_away = |fault: &Armed| fs::remove_file(&fault.file).is_ok();
        let struck: Vec<_> = armed.into_iter().filter(|fault| !took_away(fault)).collect();
        self.note_struck(&struck);
    }
}
