//! A load generator: hosts that are played, whose pods come and go at one DPU.
//!
//! Their VFs are real, and so are the ports that the DPU programs; what has no part in the DPU's work is left out: agents,
//! pods and moves. So a machine that runs few agents plays many hosts. Each says and does what an agent does: it has a
//! session, takes the VFs that it is promised, tells what it has, and repeats or takes back what it was not answered.
//! Beside others' load it may suffer and cause faults of its own: calls that nobody waits for any more, sessions that
//! are torn, late calls, reboots. What each was granted it keeps a ledger of, which at rest is compared with what `dpuctl`
//! and `ip` show. What was lost and has been given back before that is not seen: to give back what is gone succeeds.
//!
//! While nobody plays, the hosts are silent, and the DPU ends sessions that are so for long.

mod player;
mod session;

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use futures::future::join_all;
use offload_proto::v1;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use self::player::Player;
pub use self::player::{BURST, Manners, Tally};
use crate::{
    Card, CardSettings, Lab, Netns, Pki, Settings,
    breach::Breach,
    card::{Plan, root},
    dice::Dice,
    eventually,
    invariants::Picture,
    settings::Seat,
};

/// Hosts of each card: one has a PF of it.
const HOSTS_OF_CARD: usize = 16;
/// The controller of the first card, and the others' count down: a DPU's own hosts count up.
const FIRST_CONTROLLER: u32 = 15;
/// What a crowd's network and pool are called.
const NETWORK: &str = "crowd";

/// How large a crowd is.
#[derive(Clone, Copy, Debug)]
pub struct CrowdSize {
    /// Hosts, 1 to 128.
    pub hosts: usize,
    /// Pods of each, which has a VF for each.
    pub pods: u32,
}

impl CrowdSize {
    /// What the service's configuration has of it: its hosts, their pool and their network.
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

/// Hosts that are played. They end when it is dropped.
#[derive(Debug)]
pub struct Crowd {
    /// What all of them call from.
    netns: Arc<Netns>,
    players: Vec<Player>,
    runtime: Runtime,
    _cards: Vec<Card>,
}

impl Crowd {
    /// A crowd of a lab's DPU, whose configuration has its [sections](CrowdSize::sections).
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn of_lab(lab: &Lab, size: CrowdSize, seed: u64) -> Self {
        Self::join(&lab.card.dpu, &lab.pki, lab.path(), size, seed)
    }

    /// Plugs its cards into a DPU. Their logs are in the folder.
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
        // A channel is made where its connections are going to be driven.
        let entered = runtime.enter();
        let mut dice = Dice::new(seed);
        let play = |number| Player::new(pki, number, functions(&cards, number), dice.fork());
        let players = (0..size.hosts).map(play).collect();
        drop(entered);
        Self { netns, players, runtime, _cards: cards }
    }

    /// Has pods come and go until it is `over`.
    ///
    /// # Panics
    /// When a program of the test can't go on.
    pub fn play(&mut self, manners: Manners, over: impl Fn() -> bool + Sync) {
        self.each(async |player| player.play(manners, &over).await);
    }

    /// As [`Self::play`], while the first host does nothing.
    ///
    /// # Panics
    /// When a program of the test can't go on.
    pub fn play_all_but_first(&mut self, manners: Manners, over: impl Fn() -> bool + Sync) {
        let Self { netns, players, runtime, .. } = self;
        let others = players.iter_mut().skip(1).map(|player| player.play(manners, &over));
        let all = || runtime.block_on(join_all(others));
        netns.run(|| drop(all()));
    }

    /// As [`Self::play`], while the first host attaches [`BURST`] pods at once in each second.
    ///
    /// # Panics
    /// When a program of the test can't go on.
    pub fn play_beside_burst(&mut self, manners: Manners, over: impl Fn() -> bool + Sync) {
        let Self { netns, players, runtime, .. } = self;
        let (first, others) = players.split_first_mut().expect("a host");
        let others = join_all(others.iter_mut().map(|player| player.play(manners, &over)));
        let all = || runtime.block_on(futures::future::join(first.burst(&over), others));
        netns.run(|| drop(all()));
    }

    /// Brings all to rest: of each pod it is known then whether it is attached.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn settle(&mut self) {
        self.each(async |player| player.settle().await);
    }

    /// Gives everything back.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn leave(&mut self) {
        self.each(async |player| player.leave().await);
    }

    /// Does work on each host at the same time, in the hosts' namespace.
    fn each(&mut self, work: impl AsyncFn(&mut Player) + Sync) {
        let Self { netns, players, runtime, .. } = self;
        let mut all = || runtime.block_on(join_all(players.iter_mut().map(|player| work(player))));
        netns.run(|| drop(all()));
    }

    /// What all have done since they were asked last.
    pub fn take_tally(&mut self) -> Tally {
        let mut all = Tally::default();
        self.players.iter_mut().for_each(|player| all.append(player.take_tally()));
        all
    }

    /// How many attachments its hosts have.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.players.iter().map(|player| player.granted().count()).sum()
    }

    /// Asserts that at rest the DPU has what its hosts were granted, and nothing else of theirs.
    ///
    /// # Panics
    /// When it has not, naming each breach.
    pub fn assert_kept(&self, lab: &Lab) {
        let mut amiss = Vec::new();
        let kept = eventually(LIMIT, || {
            amiss = self.amiss(lab);
            amiss.is_empty().then_some(())
        });
        assert!(kept.is_some(), "{}", amiss.join("\n"));
    }

    /// What is not so now, a sentence each.
    #[must_use]
    pub fn amiss(&self, lab: &Lab) -> Vec<String> {
        self.breaches(&lab.scene().picture()).iter().map(Breach::to_string).collect()
    }

    /// What is not as it has to be at rest.
    pub(crate) fn breaches(&self, picture: &Picture) -> Vec<Breach> {
        let listed: Vec<_> = picture.attachments.iter().filter(|it| is_of_crowd(it)).collect();
        let granted: Vec<_> = self.players.iter().flat_map(Player::granted).collect();
        let is_listed =
            |it: &&v1::Attachment| listed.iter().any(|attachment| is_same(it, attachment));
        let is_granted = |it: &&&Value| granted.iter().any(|attachment| it["id"] == *attachment.id);
        let lost = granted.iter().filter(|it| !is_listed(it));
        let leaked = listed.iter().filter(|it| !is_granted(it));
        let mut breaches: Vec<_> =
            lost.map(|it| Breach::lost(format!("the crowd was granted {it:?}"))).collect();
        breaches.extend(leaked.map(|it| Breach::leaked(format!("nobody of the crowd has {it}"))));
        breaches.extend(self.ports_amiss(picture, &granted));
        breaches.extend(self.players.iter().flat_map(Player::complaints));
        breaches
    }

    /// A representor is programmed if and only if its VF was granted.
    fn ports_amiss(&self, picture: &Picture, granted: &[&v1::Attachment]) -> Vec<Breach> {
        let device = |it: &&v1::Attachment| it.vf.as_ref().map(|vf| vf.device.clone());
        let held: BTreeSet<_> = granted.iter().filter_map(device).collect();
        let all = self.players.iter().flat_map(Player::devices);
        let amiss = |device: &&str| match held.contains(*device) {
            true => !picture.is_programmed(device),
            false => !picture.is_idle(device),
        };
        let tell = |device: &str| match held.contains(device) {
            true => Breach::lost(format!("the crowd's {device} is attached, and not programmed")),
            false => Breach::leaked(format!("the crowd's {device} is not free: it has a port")),
        };
        all.filter(amiss).map(tell).collect()
    }
}

/// Whether an attachment, as `dpuctl` shows it, is one of a crowd's host.
pub(crate) fn is_of_crowd(attachment: &Value) -> bool {
    attachment["network"] == NETWORK
}

/// Whether what was granted is shown by `dpuctl`, as something that is attached.
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

/// The controller of a host's card, and its PF there.
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
    let seat = Seat { controller, ..Seat::ONLY };
    let folder = folder.join(format!("{NETWORK}-card-{place}"));
    std::fs::create_dir_all(&folder).unwrap();
    Card::between(Arc::clone(netns), Arc::clone(dpu), Plan::of(&settings, seat), &folder)
}

/// What a host has of its card.
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

/// How long what a host waits for may take at most, beside whatever else goes on.
const LIMIT: Duration = Duration::from_secs(60);
