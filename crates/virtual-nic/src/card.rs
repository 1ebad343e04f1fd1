//! The running card: watches its VFs and restores those that died with a pod's namespace.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    time::Duration,
};

use netlink::{
    Error, Link, LinkEvent, LinkMonitor, MacAddress, Request, Rtnl, VethEnd, gone_is_done,
};
use vf_alloc::{FunctionId, software_card::CardLink};

use crate::{
    CardError, Namespaces, Plan,
    netdevsim::{Device, uplink_label},
    plan::{FIRST_MTU, first_mac, vf_name},
    plug::{finish_checksums, label, label_inner, make_pair, plug, unplug},
    wires,
};

/// Pause before the next attempt to restore a VF.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// A card that is plugged in.
///
/// A real card's VF falls back to the host when its namespace ends. It is down and without addresses, but keeps the
/// name, MAC address and MTU that it had there. A veth end dies instead, and so does its other end. [`Card::run`]
/// recreates both.
///
/// The card must therefore know the state of a VF when it dies. It watches all namespaces with an ID in the DPU's, and
/// makes sure that each VF's namespace has one. It never opens them, because an open descriptor would keep them alive.
/// A VF that is in a namespace only briefly returns with its earlier state.
///
/// Representors of a simulated device come and go without their VFs when its eswitch mode changes. [`Card::run`] joins
/// new representors and a new uplink to their wires.
#[derive(Debug)]
pub struct Card {
    namespaces: Namespaces,
    plan: Plan,
    host: Rtnl,
    dpu: Rtnl,
    /// The simulated device with the representors. `None`: the inner ends are the representors.
    device: Option<Device>,
    vfs: BTreeMap<FunctionId, Vf>,
    /// VFs that died and are not restored yet.
    lost: BTreeSet<FunctionId>,
}

/// The latest known state of a VF.
#[derive(Clone, Debug)]
struct Vf {
    /// Index of the inner end of its pair.
    inner: u32,
    /// Index of the representor to which the inner end was joined, unless it is the representor itself.
    representor: Option<u32>,
    /// Index where the VF was last seen, if it was.
    index: Option<u32>,
    /// Name where the VF was last seen.
    name: String,
    mac: Option<MacAddress>,
    mtu: u32,
    alternative_names: Vec<String>,
}

impl Vf {
    /// The state of a new VF.
    fn new(id: FunctionId, inner: u32, namespaces: &Namespaces) -> Self {
        Self {
            inner,
            representor: None,
            index: None,
            name: vf_name(id),
            mac: Some(first_mac(id, namespaces)),
            mtu: FIRST_MTU,
            alternative_names: Vec::new(),
        }
    }

    fn learn(&mut self, link: &Link) {
        tracing::debug!(name = link.name, index = link.index, "read the state of a VF");
        self.index = Some(link.index);
        self.name.clone_from(&link.name);
        self.mac = link.mac;
        self.mtu = link.mtu;
        self.alternative_names.clone_from(&link.alternative_names);
    }
}

impl Card {
    /// Plugs in a card. On an error nothing remains.
    ///
    /// # Errors
    /// If such a card exists, a name is taken, or the kernel refuses.
    pub fn plug(namespaces: Namespaces, plan: Plan) -> Result<Self, CardError> {
        plug(&namespaces, &plan)?;
        let mut card = Self {
            host: Rtnl::open_in(&namespaces.host)?,
            dpu: Rtnl::open_in(&namespaces.dpu)?,
            namespaces,
            plan,
            device: None,
            vfs: BTreeMap::new(),
            lost: BTreeSet::new(),
        };
        card.learn_all()?;
        Ok(card)
    }

    /// Unplugs the card and plugs it in again. All its links are deleted, wherever they are, and created again.
    ///
    /// # Errors
    /// If a name is taken or the kernel refuses. The card is then unplugged.
    pub fn reset(&mut self) -> Result<(), CardError> {
        unplug(&self.namespaces, self.plan.controller)?;
        plug(&self.namespaces, &self.plan)?;
        self.learn_all()?;
        Ok(())
    }

    /// Unplugs the card and returns the number of removed links.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn unplug(self) -> Result<usize, CardError> {
        unplug(&self.namespaces, self.plan.controller)
    }

    /// Restores VFs whose namespaces end, without end. Must be called within a Tokio runtime. May be dropped and called
    /// again.
    ///
    /// # Errors
    /// If the links cannot be watched.
    pub async fn run(&mut self) -> Result<Infallible, CardError> {
        let mut monitor = LinkMonitor::open_with_neighbours(&self.namespaces.dpu)?;
        self.resync()?;
        loop {
            tokio::select! {
                event = monitor.next() => self.handle_or_warn(event?),
                () = tokio::time::sleep(RETRY_AFTER), if !self.lost.is_empty() => self.restore_lost(),
            }
        }
    }

    /// Reads the state of all VFs after their creation.
    fn learn_all(&mut self) -> Result<(), Error> {
        self.vfs.clear();
        self.lost.clear();
        let links = self.dpu.links()?;
        for link in &links {
            let id = vf_of_inner(link.alias.as_deref());
            if let Some(id) = id.filter(|id| id.pf.controller == self.plan.controller) {
                self.vfs.insert(id, Vf::new(id, link.index, &self.namespaces));
            }
        }
        self.device = Device::of_controller(self.plan.controller, &links);
        for link in &links {
            if let Some(vf) = self.represented(link).and_then(|id| self.vfs.get_mut(&id)) {
                vf.representor = Some(link.index);
            }
        }
        for link in self.host.links()? {
            self.learn(&link);
        }
        Ok(())
    }

    fn represented(&self, link: &Link) -> Option<FunctionId> {
        self.device.as_ref()?.represented(link)
    }

    /// Updates the state of the VF, if the link is one.
    fn learn(&mut self, link: &Link) {
        if let Some(CardLink::Vf(id)) = link.alias.as_deref().and_then(CardLink::of)
            && let Some(vf) = self.vfs.get_mut(&id)
        {
            vf.learn(link);
        }
    }

    /// Handles an event. A refusal of the kernel is only logged, because the next event may succeed.
    fn handle_or_warn(&mut self, event: LinkEvent) {
        if let Err(error) = self.handle(event) {
            tracing::warn!(%error, "cannot handle a link event");
        }
    }

    fn handle(&mut self, event: LinkEvent) -> Result<(), Error> {
        match event {
            LinkEvent::Changed(link) => self.look_at(&link)?,
            LinkEvent::Gone { index, alias, .. } => {
                if let Some(id) = vf_of_inner(alias.as_deref()) {
                    self.inner_gone(id, index);
                } else if let Some(CardLink::Vf(id)) = alias.as_deref().and_then(CardLink::of) {
                    self.look_for(id)?;
                }
            }
            LinkEvent::PortChanged { .. } => {}
            LinkEvent::Missed => self.resync()?,
        }
        Ok(())
    }

    fn look_at(&mut self, link: &Link) -> Result<(), Error> {
        if let Some(id) = vf_of_inner(link.alias.as_deref()) {
            return self.look_behind(id, link);
        }
        if let Some(id) = self.represented(link) {
            return self.join(id, link);
        }
        if self.device.as_ref().is_some_and(|device| device.is_new_uplink(link)) {
            return self.adopt_uplink(link);
        }
        self.learn(link);
        Ok(())
    }

    /// Joins a representor to its VF's wire, unless it is joined already.
    fn join(&mut self, id: FunctionId, representor: &Link) -> Result<(), Error> {
        let Some(vf) = self.vfs.get_mut(&id) else { return Ok(()) };
        if vf.representor == Some(representor.index) {
            return Ok(());
        }
        // A missing wire is joined when the VF is restored.
        if let Some(wire) = self.dpu.link_by_index(vf.inner)? {
            wires::join(representor.index, &wire, &self.namespaces.dpu, &mut self.dpu)?;
        }
        vf.representor = Some(representor.index);
        tracing::info!(vf = %id, representor = representor.name, "joined a representor to its wire");
        Ok(())
    }

    /// Names an uplink that the kernel recreated, and joins it to its wire.
    fn adopt_uplink(&mut self, uplink: &Link) -> Result<(), Error> {
        self.dpu.change_link(uplink.index, &uplink_label())?;
        let is_wire = |link: &&Link| {
            let link = link.alias.as_deref().and_then(CardLink::of);
            matches!(link, Some(CardLink::UplinkWire(_)))
        };
        match self.dpu.links()?.iter().find(is_wire) {
            Some(wire) => wires::join(uplink.index, wire, &self.namespaces.dpu, &mut self.dpu),
            None => Ok(()),
        }
    }

    /// Updates the state of the VF behind an inner end. Asking for the peer gives its namespace an ID in the DPU's, so
    /// that its events are received from now on.
    fn look_behind(&mut self, id: FunctionId, inner: &Link) -> Result<(), Error> {
        if !self.vfs.contains_key(&id) {
            return Ok(());
        }
        let found = self.dpu.peer_of(inner)?;
        if let (Some(link), Some(vf)) = (found, self.vfs.get_mut(&id)) {
            vf.learn(&link);
        }
        Ok(())
    }

    /// Updates the state of a VF that left a namespace, if it still exists.
    fn look_for(&mut self, id: FunctionId) -> Result<(), Error> {
        let Some(vf) = self.vfs.get(&id) else { return Ok(()) };
        match self.dpu.link_by_index(vf.inner)? {
            Some(inner) => self.look_behind(id, &inner),
            None => Ok(()),
        }
    }

    /// Reads all VFs again after events were lost.
    fn resync(&mut self) -> Result<(), Error> {
        let mut present = BTreeSet::new();
        for link in self.dpu.links()? {
            present.extend(vf_of_inner(link.alias.as_deref()));
            self.look_at(&link)?;
        }
        self.lost = self.vfs.keys().copied().filter(|id| !present.contains(id)).collect();
        self.restore_lost();
        Ok(())
    }

    fn inner_gone(&mut self, id: FunctionId, index: u32) {
        // A late event may be about an earlier inner end.
        if self.vfs.get(&id).is_some_and(|vf| vf.inner == index) {
            self.lost.insert(id);
            self.restore_lost();
        }
    }

    fn restore_lost(&mut self) {
        for id in std::mem::take(&mut self.lost) {
            match self.restore(id) {
                Ok(()) => tracing::info!(vf = %id, "VF restored"),
                Err(error) => {
                    tracing::warn!(vf = %id, %error, "cannot restore a VF; retrying");
                    self.lost.insert(id);
                }
            }
        }
    }

    /// Recreates a VF that died in the host's namespace, as the kernel does with a real one, and its inner end in the
    /// DPU's. Can be repeated after a failure half-way.
    fn restore(&mut self, id: FunctionId) -> Result<(), Error> {
        let Some(vf) = self.vfs.get(&id).cloned() else { return Ok(()) };
        let name = self.plan.kind.inner_name(id);
        if self.dpu.link_by_name(&name)?.is_none() {
            self.recreate(id, &vf)?;
        }
        let Some(inner) = self.dpu.link_by_name(&name)? else { return Ok(()) };
        let Some(link) = self.dpu.peer_of(&inner)? else { return Ok(()) };
        if let Some(representor) = vf.representor {
            let joined = wires::join(representor, &inner, &self.namespaces.dpu, &mut self.dpu);
            // A missing representor is joined when it is created.
            gone_is_done(joined)?;
        }
        if self.plan.whole_checksums {
            finish_checksums(&self.namespaces.host, &link.name);
        }
        self.restore_names(&link, &vf)?;
        self.host.change_link(link.index, &label(CardLink::Vf(id)))?;
        let mut vf = Vf { inner: inner.index, ..vf };
        vf.learn(&link);
        self.vfs.insert(id, vf);
        Ok(())
    }

    fn recreate(&mut self, id: FunctionId, vf: &Vf) -> Result<(), Error> {
        let mut end = VethEnd::new(self.free_name(vf)?).mtu(vf.mtu);
        if let Some(mac) = vf.mac {
            end = end.mac(mac);
        }
        if let Some(index) = vf.index
            && self.host.link_by_index(index)?.is_none()
        {
            end = end.index(index);
        }
        self.host.batch(&[make_pair(id, end, self.plan.kind, &self.namespaces)])?;
        self.dpu.batch(&[label_inner(id, self.plan.kind)])
    }

    /// The name of a restored VF, by the kernel's rule: its own name if free, else `dev` and the index, else any.
    fn free_name(&mut self, vf: &Vf) -> Result<String, Error> {
        let by_index = vf.index.map(|index| format!("dev{index}"));
        for name in [Some(vf.name.clone()), by_index].into_iter().flatten() {
            if self.host.link_by_name(&name)?.is_none() {
                return Ok(name);
            }
        }
        Ok("dev%d".to_owned())
    }

    /// Restores the alternative names, except those that are taken.
    fn restore_names(&mut self, link: &Link, vf: &Vf) -> Result<(), Error> {
        for name in &vf.alternative_names {
            match self.host.change(Request::add_alternative_name(link.index, name)) {
                Err(error) if !error.is_exists() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The VF whose inner end has this alias.
fn vf_of_inner(alias: Option<&str>) -> Option<FunctionId> {
    match CardLink::of(alias?)? {
        CardLink::Representor(id) | CardLink::Wire(id) => Some(id),
        _ => None,
    }
}
