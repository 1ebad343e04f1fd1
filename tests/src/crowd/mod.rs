//! A load generator: simulated hosts whose pods attach and detach at one DPU.
//!
//! Their VFs and the ports that the DPU programs are real. Agents, pods and moves are left out, because they cost the
//! DPU nothing, so a machine that can run few agents simulates many hosts. Each host behaves like an agent: it opens a
//! session, takes offered VFs, sends its inventory, and repeats or detaches unanswered attaches.
//!
//! On request a host also causes and suffers faults: cancelled calls, broken sessions, late calls, reboots. Each keeps
//! a ledger of its grants, which is compared at rest with the output of `dpuctl` and `ip`. An attachment that was lost
//! and then detached is not noticed, because such a detach succeeds.
//!
//! Between plays the hosts are silent, and the DPU ends sessions that are silent for too long.

mod session;
mod simulated_host;

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use futures::future::join_all;
use offload_proto::v1;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use self::simulated_host::SimulatedHost;
pub use self::simulated_host::{BURST, CrowdBehaviour, Tally};
use crate::{
    Card, CardSettings, Lab, Netns, Pki, Settings,
    card::{Plan, root},
    eventually,
    invariants::Snapshot,
    rng::Rng,
    settings::CardPosition,
    violation::Violation,
};

/// Hosts of a card, one for each PF.
const HOSTS_OF_CARD: usize = 16;
/// Controller of the first card; the others count down, because a DPU's real hosts count up.
const FIRST_CONTROLLER: u32 = 15;
/// Name of the crowd's network and pool.
const NETWORK: &str = "crowd";

/// Size of a crowd.
#[derive(Clone, Copy, Debug)]
pub struct CrowdSize {
    /// Hosts, 1 to 128.
    pub hosts: usize,
    /// Pods and VFs of each host.
    pub pods: u32,
}

impl CrowdSize {
    /// Sections of the service's configuration: hosts, their pool and their network.
    #[must_use]
    pub fn sections(self) -> String {
        let hosts = || (0..self.hosts).map(|number| (name_of(number), pf_of(number)));
        let select: Vec<_> = hosts().map(|(_, pf)| format!("{pf}#0-{}", self.pods - 1)).collect();
        let section = |(name, pf)| format!("[[host]]\nname = {name:?}\npfs = [{pf:?}]\n");
        let sections: String = hosts().map(section).collect();
        format!(
            r#"{sections}
[[pool]]
name = {NETWORK:?}
select = {select:?}
[[network]]
name = {NETWORK:?}
pool = {NETWORK:?}
subnets = [{{ cidr = "10.99.0.0/16" }}, {{ cidr = "fd00:10:99::/64" }}]
"#
        )
    }

    fn cards(self) -> usize {
        self.hosts.div_ceil(HOSTS_OF_CARD)
    }
}

/// Simulated hosts. They end on drop.
#[derive(Debug)]
pub struct Crowd {
    /// The namespace from which all of them call.
    netns: Arc<Netns>,
    players: Vec<SimulatedHost>,
    runtime: Runtime,
    _cards: Vec<Card>,
}

impl Crowd {
    /// A crowd at a lab's DPU, whose configuration contains its [sections](CrowdSize::sections).
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn of_lab(lab: &Lab, size: CrowdSize, seed: u64) -> Self {
        Self::join(&lab.card.dpu, &lab.pki, lab.path(), size, seed)
    }

    /// Plugs the crowd's cards into a DPU. Their logs are in the folder.
    pub(crate) fn join(
        dpu: &Arc<Netns>,
        pki: &Pki,
        folder: &Path,
        size: CrowdSize,
        seed: u64,
    ) -> Self {
        let netns = root(NETWORK);
        let plug = |place| plug(&netns, dpu, folder, size, place);
        let cards: Vec<_> = (0..size.cards()).map(plug).collect();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        // Create each channel on the executor that drives its connections.
        let entered = runtime.enter();
        let mut rng = Rng::new(seed);
        let play = |number| SimulatedHost::new(pki, number, functions(&cards, number), rng.fork());
        let players = (0..size.hosts).map(play).collect();
        drop(entered);
        Self { netns, players, runtime, _cards: cards }
    }

    /// Attaches and detaches pods until `over` returns true.
    ///
    /// # Panics
    /// If a program of the test fails.
    pub fn play(&mut self, behaviour: CrowdBehaviour, over: impl Fn() -> bool + Sync) {
        self.each(async |simulated_host| simulated_host.play(behaviour, &over).await);
    }

    /// Like [`Self::play`], with an idle first host.
    ///
    /// # Panics
    /// If a program of the test fails.
    pub fn play_all_but_first(
        &mut self,
        behaviour: CrowdBehaviour,
        over: impl Fn() -> bool + Sync,
    ) {
        let Self { netns, players, runtime, .. } = self;
        let others =
            players.iter_mut().skip(1).map(|simulated_host| simulated_host.play(behaviour, &over));
        let all = || runtime.block_on(join_all(others));
        netns.run(|| drop(all()));
    }

    /// Like [`Self::play`], while the first host attaches [`BURST`] pods at once each second.
    ///
    /// # Panics
    /// If a program of the test fails.
    pub fn play_with_burst(&mut self, behaviour: CrowdBehaviour, over: impl Fn() -> bool + Sync) {
        let Self { netns, players, runtime, .. } = self;
        let (first, others) = players.split_first_mut().expect("a host");
        let others =
            join_all(others.iter_mut().map(|simulated_host| simulated_host.play(behaviour, &over)));
        let all = || runtime.block_on(futures::future::join(first.burst(&over), others));
        netns.run(|| drop(all()));
    }

    /// Stops all calls: then the state of each pod is known.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn settle(&mut self) {
        self.each(async |simulated_host| simulated_host.settle().await);
    }

    /// Detaches everything.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn leave(&mut self) {
        self.each(async |simulated_host| simulated_host.leave().await);
    }

    /// Runs work on all hosts at the same time, in the hosts' namespace.
    fn each(&mut self, work: impl AsyncFn(&mut SimulatedHost) + Sync) {
        let Self { netns, players, runtime, .. } = self;
        let mut all = || {
            runtime
                .block_on(join_all(players.iter_mut().map(|simulated_host| work(simulated_host))))
        };
        netns.run(|| drop(all()));
    }

    /// What all hosts have done since the last call.
    pub fn take_tally(&mut self) -> Tally {
        let mut all = Tally::default();
        self.players.iter_mut().for_each(|simulated_host| all.append(simulated_host.take_tally()));
        all
    }

    /// Number of attachments of the crowd's hosts.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.players.iter().map(|simulated_host| simulated_host.granted().count()).sum()
    }

    /// Asserts that at rest the DPU has exactly the crowd's grants.
    ///
    /// # Panics
    /// If it does not; names each violation.
    pub fn assert_kept(&self, lab: &Lab) {
        let mut amiss = Vec::new();
        let kept = eventually(LIMIT, || {
            amiss = self.amiss(lab);
            amiss.is_empty().then_some(())
        });
        assert!(kept.is_some(), "{}", amiss.join("\n"));
    }

    /// Current problems, one sentence each.
    #[must_use]
    pub fn amiss(&self, lab: &Lab) -> Vec<String> {
        self.violations(&lab.scene().snapshot()).iter().map(Violation::to_string).collect()
    }

    /// Violations at rest.
    pub(crate) fn violations(&self, snapshot: &Snapshot) -> Vec<Violation> {
        let listed: Vec<_> = snapshot.attachments.iter().filter(|it| is_of_crowd(it)).collect();
        let granted: Vec<_> = self.players.iter().flat_map(SimulatedHost::granted).collect();
        let is_listed =
            |it: &&v1::Attachment| listed.iter().any(|attachment| is_same(it, attachment));
        let is_granted = |it: &&&Value| granted.iter().any(|attachment| it["id"] == *attachment.id);
        let lost = granted.iter().filter(|it| !is_listed(it));
        let leaked = listed.iter().filter(|it| !is_granted(it));
        let mut violations: Vec<_> =
            lost.map(|it| Violation::lost(format!("the crowd was granted {it:?}"))).collect();
        violations
            .extend(leaked.map(|it| Violation::leaked(format!("no host of the crowd has {it}"))));
        violations.extend(self.ports_amiss(snapshot, &granted));
        violations.extend(self.players.iter().flat_map(SimulatedHost::complaints));
        violations
    }

    /// A representor must be programmed if and only if its VF was granted.
    fn ports_amiss(&self, snapshot: &Snapshot, granted: &[&v1::Attachment]) -> Vec<Violation> {
        let device = |it: &&v1::Attachment| it.vf.as_ref().map(|vf| vf.device.clone());
        let held: BTreeSet<_> = granted.iter().filter_map(device).collect();
        let all = self.players.iter().flat_map(SimulatedHost::devices);
        let amiss = |device: &&str| match held.contains(*device) {
            true => !snapshot.is_programmed(device),
            false => !snapshot.is_idle(device),
        };
        let tell = |device: &str| match held.contains(device) {
            true => {
                Violation::lost(format!("the crowd's {device} is attached, and not programmed"))
            }
            false => Violation::leaked(format!("the crowd's {device} is not free: it has a port")),
        };
        all.filter(amiss).map(tell).collect()
    }
}

/// Whether an attachment in `dpuctl`'s output belongs to a host of the crowd.
pub(crate) fn is_of_crowd(attachment: &Value) -> bool {
    attachment["network"] == NETWORK
}

/// Whether `dpuctl` shows the grant as attached.
fn is_same(granted: &v1::Attachment, shown: &Value) -> bool {
    let addresses: Vec<_> = granted.addresses.iter().map(|it| it.address.as_str()).collect();
    let shown_addresses = shown["addresses"].as_array().into_iter().flatten();
    let device = granted.vf.as_ref().map(|vf| vf.device.as_str());
    shown["id"] == *granted.id
        && shown["vf"]["device"].as_str() == device
        && shown["mac"] == *granted.mac
        && shown["state"] == "ATTACHMENT_STATE_ATTACHED"
        && shown_addresses.filter_map(|it| it["address"].as_str()).eq(addresses)
}

fn name_of(host: usize) -> String {
    format!("{NETWORK}-{host}")
}

/// Controller and PF of a host's card.
fn place_of(host: usize) -> (u32, u32) {
    let number = |place: usize| u32::try_from(place).expect("a small number");
    (FIRST_CONTROLLER - number(host / HOSTS_OF_CARD), number(host % HOSTS_OF_CARD))
}

/// A host's PF, as the DPU calls it.
fn pf_of(host: usize) -> String {
    let (controller, pf) = place_of(host);
    format!("c{controller}p{pf}")
}

fn plug(
    netns: &Arc<Netns>,
    dpu: &Arc<Netns>,
    folder: &Path,
    size: CrowdSize,
    place: usize,
) -> Card {
    let hosts = (size.hosts - place * HOSTS_OF_CARD).min(HOSTS_OF_CARD);
    let card = CardSettings { pfs: u32::try_from(hosts).expect("few"), ..CardSettings::default() };
    let settings = Settings { card, ..Settings::with_vfs(size.pods) };
    let (controller, _) = place_of(place * HOSTS_OF_CARD);
    let position = CardPosition { controller, ..CardPosition::ONLY };
    let folder = folder.join(format!("{NETWORK}-card-{place}"));
    std::fs::create_dir_all(&folder).unwrap();
    Card::between(Arc::clone(netns), Arc::clone(dpu), Plan::of(&settings, position), &folder)
}

/// Functions of a host's card.
fn functions(cards: &[Card], host: usize) -> v1::PhysicalFunction {
    let card = &cards[host / HOSTS_OF_CARD];
    let (controller, pf) = place_of(host);
    let device = card.pf_address(pf);
    let domain = device.split(':').next().expect("an address").to_owned();
    let devices = card.clean().iter().filter(|(pci, _)| pci.starts_with(&domain));
    let vf = |(vf, (device, end)): (u32, (&String, &crate::HostEnd))| v1::VirtualFunction {
        vf,
        device: device.clone(),
        condition: v1::VfCondition::Clean.into(),
        netdev: end.name.clone(),
        use_by_host: String::new(),
    };
    v1::PhysicalFunction {
        controller,
        pf,
        device,
        vendor_id: "1af4".into(),
        device_id: "1041".into(),
        vfs: (0..).zip(devices).map(vf).collect(),
    }
}

/// Timeout of anything that a host waits for, beside other load.
const LIMIT: Duration = Duration::from_secs(60);
