//! A simulated host and its knowledge.

use std::{collections::BTreeMap, mem, time::Duration};

use futures::future::join_all;
use mtls::{Connector, Role};
use nix::time::ClockId;
use offload_proto::v1::{
    self, AttachmentKey, host_message::Message as FromHost,
    workload_network_client::WorkloadNetworkClient,
};
use test_clock::within;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::{Status, transport::Channel};

use super::{LIMIT, NETWORK, name_of, place_of, session::Session};
use crate::{Pki, Stopwatch, rng::Rng, settings::CardPosition, violation::Violation};

/// Pods that a host of a burst attaches at once each second.
pub const BURST: usize = 16;
const SECOND: Duration = Duration::from_secs(1);

/// Behaviour of a crowd's hosts.
#[derive(Clone, Copy, Debug)]
pub struct CrowdBehaviour {
    /// Longest pause between two calls of a host. Each pause is random.
    pub pause: Duration,
    /// Whether hosts cause and suffer faults.
    pub faults: bool,
}

/// What a crowd has done.
#[derive(Debug, Default)]
pub struct Tally {
    /// Durations of granted attaches.
    pub attaches: Vec<Duration>,
    /// Durations of granted detaches.
    pub detaches: Vec<Duration>,
    /// Number of attaches and detaches that were refused or cancelled.
    pub failed: usize,
    /// Their reasons with counts.
    pub refusals: BTreeMap<String, usize>,
}

impl Tally {
    /// How many calls were granted.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.attaches.len() + self.detaches.len()
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.attaches.append(&mut other.attaches);
        self.detaches.append(&mut other.detaches);
        self.failed += other.failed;
        for (text, count) in other.refusals {
            *self.refusals.entry(text).or_default() += count;
        }
    }
}

#[derive(Debug)]
pub(super) struct SimulatedHost {
    /// All VFs of the host.
    functions: v1::PhysicalFunction,
    client: WorkloadNetworkClient<Channel>,
    session: Option<Session>,
    /// Number of boots.
    boots: u32,
    pods: Vec<Pod>,
    rng: Rng,
    tally: Tally,
    complaints: Vec<String>,
}

/// A pod's interface.
#[derive(Debug)]
struct Pod {
    key: AttachmentKey,
    state: State,
    /// Device of the VF that the pod has or may have.
    device: Option<String>,
    /// The previous attachment, for late calls.
    former: Option<String>,
}

#[derive(Debug)]
enum State {
    Absent,
    Attached(Box<v1::Attachment>),
    /// A call failed or its answer was lost: the pod may be attached, with the VF taken for it.
    Unknown(Option<Taken>),
}

/// A VF taken from those that the DPU offered.
#[derive(Clone, Debug)]
struct Taken {
    offer: v1::VfOffer,
    /// The session of the offer.
    session_id: String,
}

impl Pod {
    fn attachment(&self) -> Option<&v1::Attachment> {
        match &self.state {
            State::Attached(attachment) => Some(attachment),
            _ => None,
        }
    }
}

impl SimulatedHost {
    pub(super) fn new(pki: &Pki, number: usize, functions: v1::PhysicalFunction, rng: Rng) -> Self {
        let name = name_of(number);
        pki.issue_once("host", &name);
        let credentials = pki.credentials(Role::Host, &name);
        let (controller, _) = place_of(number);
        let position = CardPosition { controller, ..CardPosition::ONLY };
        let connector =
            Connector::new(credentials, &position.endpoint(), position.dpu, LIMIT).unwrap();
        let pod = |pod| Pod {
            key: AttachmentKey {
                container_id: format!("{name}-pod-{pod}"),
                interface_name: "eth0".into(),
            },
            state: State::Absent,
            device: None,
            former: None,
        };
        Self {
            client: WorkloadNetworkClient::new(connector.channel()),
            session: None,
            boots: 1,
            pods: (0..functions.vfs.len()).map(pod).collect(),
            functions,
            rng,
            tally: Tally::default(),
            complaints: Vec::new(),
        }
    }

    /// The grants, as far as known.
    pub(super) fn granted(&self) -> impl Iterator<Item = &v1::Attachment> {
        self.pods.iter().filter_map(Pod::attachment)
    }

    /// The devices of all VFs.
    pub(super) fn devices(&self) -> impl Iterator<Item = &str> {
        self.functions.vfs.iter().map(|vf| &*vf.device)
    }

    pub(super) fn complaints(&self) -> impl Iterator<Item = Violation> {
        self.complaints.iter().cloned().map(Violation::lost)
    }

    pub(super) fn take_tally(&mut self) -> Tally {
        mem::take(&mut self.tally)
    }

    /// Attaches and detaches pods until `over` returns true.
    pub(super) async fn play(&mut self, behaviour: CrowdBehaviour, over: impl Fn() -> bool) {
        while !over() {
            if behaviour.faults {
                self.suffer();
            }
            let timeout = if behaviour.faults { self.choose_timeout() } else { LIMIT };
            let pod = self.rng.index(self.pods.len());
            if self.is_in_session().await {
                self.change(pod, timeout).await;
            }
            sleep(behaviour.pause * self.percent() / 100).await;
        }
    }

    /// Attaches [`BURST`] pods at once each second until `over` returns true, and detaches them. The tally omits their
    /// attaches.
    pub(super) async fn burst(&mut self, over: impl Fn() -> bool) {
        while !over() {
            let begun = Instant::now();
            if self.is_in_session().await {
                self.attach_burst().await;
                for pod in 0..BURST {
                    self.detach(pod, LIMIT).await;
                }
            }
            sleep_until(begun + SECOND).await;
        }
    }

    async fn attach_burst(&mut self) {
        let mut calls = Vec::new();
        for pod in 0..BURST {
            let taken = self.take_vf(pod).await;
            let (mut client, request) =
                (self.client.clone(), self.attach_request(pod, taken.as_ref()));
            calls.push(async move { (taken, client.attach(request).await) });
        }
        for (pod, (taken, answer)) in join_all(calls).await.into_iter().enumerate() {
            if let Some(response) = self.note(Some(answer)) {
                let attachment = response.into_inner().attachment.expect("what was granted");
                self.note_attached(pod, taken, attachment).await;
            }
        }
    }

    fn percent(&mut self) -> u32 {
        u32::try_from(self.rng.below(100)).expect("less than 100")
    }

    /// A small share of the calls is cancelled early.
    fn choose_timeout(&mut self) -> Duration {
        let brief = Duration::from_micros(self.rng.below(20_000));
        if self.rng.happens(10) { brief } else { LIMIT }
    }

    /// Breaks the session, or reboots.
    fn suffer(&mut self) {
        if self.rng.happens(3) {
            self.session = None;
        }
        if self.rng.happens(1) {
            self.session = None;
            self.boots += 1;
            // After a boot all VFs are new, whatever the pods had.
            for pod in &mut self.pods {
                (pod.state, pod.device) = (State::Absent, None);
            }
        }
    }

    async fn change(&mut self, pod: usize, timeout: Duration) {
        let is_late = self.rng.happens(10);
        match &self.pods[pod].state {
            State::Absent => self.attach(pod, timeout).await,
            State::Attached(_) if is_late => self.detach_late(pod).await,
            State::Attached(_) => self.detach(pod, timeout).await,
            State::Unknown(_) if self.rng.happens(50) => self.attach(pod, timeout).await,
            State::Unknown(_) => self.detach(pod, timeout).await,
        }
    }

    /// Calls until the state of each pod is known, also to the DPU.
    pub(super) async fn settle(&mut self) {
        self.until(|pod| matches!(pod.state, State::Unknown(_))).await;
    }

    /// Detaches until no pod is attached.
    pub(super) async fn leave(&mut self) {
        self.until(|pod| !matches!(pod.state, State::Absent)).await;
    }

    /// Detaches these pods, and waits until the DPU has processed everything.
    async fn until(&mut self, is_to_leave: impl Fn(&Pod) -> bool) {
        let begun = Stopwatch::start();
        while within(LIMIT, self.try_to_detach(&is_to_leave)).await != Some(true) {
            let Self { pods, tally, .. } = self;
            assert!(begun.unstalled() < LIMIT, "no rest: {pods:?} {:?}", tally.refusals);
            sleep(RETRY).await;
        }
    }

    async fn try_to_detach(&mut self, is_to_leave: impl Fn(&Pod) -> bool) -> bool {
        if !self.is_in_session().await {
            return false;
        }
        for pod in 0..self.pods.len() {
            if is_to_leave(&self.pods[pod]) {
                self.detach(pod, LIMIT).await;
            }
        }
        let Some(session) = &mut self.session else { return false };
        let is_processed = session.all_processed().await;
        let Some(release) = session.take_released() else {
            return is_processed && !self.pods.iter().any(is_to_leave);
        };
        self.give_back(release).await;
        false
    }

    /// Whether there is a session. Opens one if necessary.
    async fn is_in_session(&mut self) -> bool {
        if self.session.as_ref().is_none_or(Session::is_over) {
            // The previous session must have ended.
            self.session = None;
            let hello = self.hello();
            let opened = Session::open(&mut self.client, hello).await;
            self.session = opened.map_err(|refused| self.note_refusal(refused.message())).ok();
        }
        while let Some(release) = self.session.as_mut().and_then(Session::take_released) {
            self.give_back(release).await;
        }
        self.session.is_some()
    }

    /// Detaches an attachment that the DPU asks to release: after a reboot or a lost answer the host does not know it.
    async fn give_back(&mut self, v1::Release { attachment_id, key, reason }: v1::Release) {
        if self.granted().any(|attachment| attachment.id == attachment_id) {
            let what =
                format!("the DPU has a host of the crowd give {attachment_id} back: {reason}");
            return self.complaints.push(what);
        }
        if let Some(pod) = self.pods.iter().position(|pod| Some(&pod.key) == key.as_ref()) {
            let request = self.detach_request(pod, attachment_id);
            let answer = within(LIMIT, self.client.detach(request)).await;
            self.note(answer);
        }
    }

    fn hello(&self) -> v1::Hello {
        let live = |pod: &Pod| {
            let attachment_id = pod.attachment()?.id.clone();
            Some(v1::LiveAttachment { attachment_id, key: Some(pod.key.clone()), in_pod: true })
        };
        let is_pending = |pod: &&Pod| matches!(pod.state, State::Unknown(_));
        v1::Hello {
            boot_id: format!("boot-{}", self.boots),
            inventory: Some(self.inventory()),
            live: self.pods.iter().filter_map(live).collect(),
            pending: self.pods.iter().filter(is_pending).map(|pod| pod.key.clone()).collect(),
            ..v1::Hello::default()
        }
    }

    fn inventory(&self) -> v1::Inventory {
        let as_of_ns = now();
        let mut pf = self.functions.clone();
        for vf in &mut pf.vfs {
            if self.pods.iter().any(|pod| pod.device.as_ref() == Some(&vf.device)) {
                vf.condition = v1::VfCondition::InUse.into();
            }
        }
        v1::Inventory { pfs: vec![pf], as_of_ns }
    }

    async fn send(&self, message: FromHost) {
        if let Some(session) = &self.session {
            session.send(message).await;
        }
    }

    /// The VF taken for the pod earlier in this session, or an offered one.
    async fn take_vf(&mut self, pod: usize) -> Option<Taken> {
        let session = self.session.as_mut()?;
        let session_id = session.id.clone();
        match &self.pods[pod].state {
            State::Unknown(Some(taken)) if taken.session_id == session_id => Some(taken.clone()),
            _ => session.take_offer().await.map(|offer| Taken { offer, session_id }),
        }
    }

    async fn attach(&mut self, pod: usize, timeout: Duration) {
        let taken = self.take_vf(pod).await;
        let request = self.attach_request(pod, taken.as_ref());
        if let Some(taken) = &taken {
            self.pods[pod].device = Some(taken.offer.device.clone());
        }
        self.pods[pod].state = State::Unknown(taken.clone());
        let begun = Stopwatch::start();
        let answer = within(timeout, self.client.attach(request)).await;
        let Some(response) = self.note(answer) else { return };
        self.tally.attaches.push(begun.elapsed());
        let attachment = response.into_inner().attachment.expect("what was granted");
        self.note_attached(pod, taken, attachment).await;
    }

    /// Records an attachment, which may have another VF than the one taken for it.
    async fn note_attached(
        &mut self,
        pod: usize,
        taken: Option<Taken>,
        attachment: v1::Attachment,
    ) {
        let attached = v1::Attached { attachment_id: attachment.id.clone() };
        let Pod { state, device, .. } = &mut self.pods[pod];
        *device = attachment.vf.as_ref().map(|vf| vf.device.clone());
        let is_another = |it: &Taken| device.as_ref() != Some(&it.offer.device);
        let taken = taken.filter(is_another);
        *state = State::Attached(Box::new(attachment));
        self.give_up(taken).await;
        self.send(FromHost::Attached(attached)).await;
        self.send_inventory().await;
    }

    async fn detach(&mut self, pod: usize, timeout: Duration) {
        let id = self.pods[pod].attachment().map(|attachment| attachment.id.clone());
        let request = self.detach_request(pod, id.clone().unwrap_or_default());
        let taken = match &mut self.pods[pod].state {
            State::Unknown(taken) => taken.take(),
            _ => None,
        };
        self.pods[pod].state = State::Unknown(taken.clone());
        let begun = Stopwatch::start();
        let answer = within(timeout, self.client.detach(request)).await;
        if self.note(answer).is_none() {
            return;
        }
        self.tally.detaches.push(begun.elapsed());
        let Pod { state, device, former, .. } = &mut self.pods[pod];
        (*state, *device, *former) = (State::Absent, None, id.or(former.take()));
        self.give_up(taken).await;
        self.send_inventory().await;
    }

    /// Reports that a taken VF was not used.
    async fn give_up(&self, taken: Option<Taken>) {
        if let Some(Taken { offer, session_id }) = taken
            && self.session.as_ref().is_some_and(|session| session.id == session_id)
        {
            self.send(FromHost::DeclinedOffers(v1::DeclinedOffers { offers: vec![offer] })).await;
        }
    }

    async fn send_inventory(&self) {
        self.send(FromHost::Inventory(self.inventory())).await;
    }

    /// Repeats the detach of the previous attachment. It must not affect the present one.
    async fn detach_late(&mut self, pod: usize) {
        let Some(former) = self.pods[pod].former.clone() else { return };
        let request = self.detach_request(pod, former);
        let answer = within(LIMIT, self.client.detach(request)).await;
        self.note(answer);
    }

    fn attach_request(&self, pod: usize, taken: Option<&Taken>) -> v1::AttachRequest {
        v1::AttachRequest {
            session_id: self.session_id(),
            key: Some(self.pods[pod].key.clone()),
            network: NETWORK.into(),
            offered: taken.map(|taken| taken.offer.clone()),
            as_of_ns: now(),
            ..v1::AttachRequest::default()
        }
    }

    fn session_id(&self) -> String {
        self.session.as_ref().map(|session| session.id.clone()).unwrap_or_default()
    }

    fn detach_request(&self, pod: usize, attachment_id: String) -> v1::DetachRequest {
        v1::DetachRequest {
            key: Some(self.pods[pod].key.clone()),
            attachment_id,
            vf_returned: true,
            as_of_ns: now(),
            session_id: self.session_id(),
            ..v1::DetachRequest::default()
        }
    }

    /// The answer, if the call was granted.
    fn note<T>(&mut self, answer: Option<Result<T, Status>>) -> Option<T> {
        match answer {
            Some(Ok(granted)) => return Some(granted),
            Some(Err(status)) => self.note_refusal(status.message()),
            None => self.note_refusal("nobody waited for the answer"),
        }
        self.tally.failed += 1;
        None
    }

    fn note_refusal(&mut self, why: &str) {
        *self.tally.refusals.entry(why.to_owned()).or_default() += 1;
    }
}

/// Pause after a failed attempt.
const RETRY: Duration = Duration::from_millis(20);

/// The clock that orders calls and messages.
fn now() -> u64 {
    let now = ClockId::CLOCK_BOOTTIME.now().expect("a clock");
    Duration::from(now).as_nanos().try_into().expect("less than 500 years")
}
