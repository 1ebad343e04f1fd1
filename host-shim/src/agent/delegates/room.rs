//! The room's doors: [`Delegates`] has interfaces made by other plugins, looked at and taken back.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Instant,
};

use netlink::{Link, Netns, Request, Rtnl};
use offload_proto::{Failure, Reason, v1};
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;

use super::{
    catalogue::{Meaning, look_up},
    failed, outcome,
    plugin::{self, Surroundings},
    record::{Delegated, Store},
    settings::DelegateSettings,
    versions::{self, Known},
    wishes::{Delegation, has_capability},
};
use crate::{
    agent::{
        defect::{defect, locked},
        milestones::Milestone,
        vfs::{Phase, PodNetns},
    },
    cni::version::Version,
    protocol::{AddRequest, Key},
};

/// The interfaces that other plugins make.
#[derive(Debug)]
pub(in crate::agent) struct Delegates {
    /// `None`: no network of the host's is other plugins'. What was made before is taken back all the same.
    networks: Option<PathBuf>,
    settings: DelegateSettings,
    store: Store,
    known: Known,
    /// What is about to be taken back once more: there may be a pass of the keeper before that has ended.
    again: Mutex<BTreeSet<Key>>,
}

impl Delegates {
    /// Those of an agent with these settings, which keeps what it makes in `folder`.
    ///
    /// # Errors
    /// When what is kept can't be listed.
    pub(in crate::agent) fn open(
        settings: Option<DelegateSettings>,
        folder: PathBuf,
    ) -> io::Result<Self> {
        let networks = settings.as_ref().map(|settings| settings.networks.clone());
        let settings = settings.unwrap_or_default();
        let (store, known) = (Store::open(folder)?, Known::default());
        Ok(Self { networks, settings, store, known, again: Mutex::default() })
    }

    /// Takes out of an ADD the further interfaces that other plugins make, and has those that files say are the DPU's
    /// be of the network that they name.
    ///
    /// # Errors
    /// What a network's file says can't be had, or what is asked of it.
    pub(in crate::agent) fn take_out(
        &self,
        mut add: AddRequest,
    ) -> Result<(AddRequest, Vec<Delegation>), Failure> {
        let namespace = add.pod.namespace.clone();
        match self.meaning(&add.key, &namespace, &add.network)? {
            Some(Meaning::Plugins(chain)) => return Err(leads(&add.key, &chain.network)),
            Some(Meaning::Dpu(network)) => add.network = network,
            None => {}
        }
        let mut delegations = Vec::new();
        let mut own = Vec::new();
        for mut further in std::mem::take(&mut add.further) {
            let key = Key { interface_name: further.interface_name.clone(), ..add.key.clone() };
            match self.meaning(&key, &namespace, &further.network)? {
                Some(Meaning::Plugins(chain)) => {
                    delegations.push(Delegation::new(&add, &further, chain)?);
                    continue;
                }
                Some(Meaning::Dpu(network)) => further.network = network,
                None => {}
            }
            own.push(further);
        }
        add.further = own;
        Ok((add, delegations))
    }

    /// What a name stands for. What was made of it stays what it was for a repeat of its ADD, whatever became of the
    /// file.
    fn meaning(
        &self,
        key: &Key,
        namespace: &str,
        network: &str,
    ) -> Result<Option<Meaning>, Failure> {
        if let Some(made) = self.store.by_key(key).filter(|made| made.network() == network) {
            return Ok(Some(Meaning::Plugins(made.chain.clone())));
        }
        match &self.networks {
            Some(folder) if !network.is_empty() => look_up(folder, namespace, network),
            _ => Ok(None),
        }
    }

    /// The interfaces that the attachment of this key leads.
    pub(in crate::agent) fn led_by(&self, lead: &Key) -> Vec<Arc<Delegated>> {
        let is_led = |one: &Arc<Delegated>| {
            one.key.container_id == lead.container_id && one.lead == lead.interface_name
        };
        self.store.all().into_iter().filter(is_led).collect()
    }

    /// The interface of this key.
    pub(in crate::agent) fn by_key(&self, key: &Key) -> Option<Arc<Delegated>> {
        self.store.by_key(key)
    }

    /// All of them.
    pub(in crate::agent) fn all(&self) -> Vec<Arc<Delegated>> {
        self.store.all()
    }

    /// Has an interface made in a pod. It is kept as one that nobody was answered.
    ///
    /// # Errors
    /// Why it was not. What has come of it is taken back by [`Self::delete`].
    pub(in crate::agent) async fn add(
        &self,
        delegation: Delegation,
        netns: &PodNetns,
        deadline: Instant,
    ) -> Result<v1::Attachment, Failure> {
        let deadline = deadline.min(Instant::now() + self.settings.call());
        let calls = self.store.lock_calls(&delegation.key, deadline).await?;
        let key = delegation.key.clone();
        let delegated = match self.begin(delegation, netns, &calls, deadline).await {
            Ok(delegated) => delegated,
            Err(failure) => {
                self.store.remove(&key);
                return Err(failure);
            }
        };
        Milestone::DelegateRecorded.pass();
        let result = self.make(&delegated, &calls, deadline).await?;
        Milestone::DelegateMade.pass();
        let link = link_in_pod(&delegated).await?.ok_or_else(|| {
            let name = &delegated.key.interface_name;
            failed(&delegated, &format!("its plugins have made no interface {name} in the pod"))
        })?;
        let attachment = outcome::attachment(&delegated, &result, &link)?;
        let made = Delegated {
            result: Some(result),
            attachment: Some(attachment.clone()),
            ..Delegated::clone(&delegated)
        };
        self.store.write(made)?;
        Ok(attachment)
    }

    /// Records what is about to be made, unless it can be seen beforehand that it can't.
    async fn begin(
        &self,
        delegation: Delegation,
        netns: &PodNetns,
        calls: &File,
        deadline: Instant,
    ) -> Result<Arc<Delegated>, Failure> {
        let Delegation { key, lead, chain, arguments, wishes } = delegation;
        let mut delegated = Delegated {
            key,
            lead,
            netns: netns.clone(),
            phase: Phase::Attaching,
            chain,
            version: String::new(),
            arguments,
            wishes,
            result: None,
            attachment: None,
        };
        delegated.version = self.common_version(&delegated, calls, deadline).await?.into();
        refuse_taken_name(&delegated).await?;
        self.store.write(delegated)
    }

    /// Keeps an interface from now on, or does not.
    ///
    /// # Errors
    /// [`Reason::RecordsUnavailable`]: it is kept as before.
    pub(in crate::agent) fn note(
        &self,
        delegated: &Delegated,
        phase: Phase,
    ) -> Result<(), Failure> {
        self.store.write(Delegated { phase, ..delegated.clone() }).map(drop)
    }

    /// Has an interface taken back by its plugins, as they were told when it was made. Nothing is to be done of one that
    /// is not kept.
    ///
    /// # Errors
    /// Why the plugins have not. It stays kept, so that they are called again; but the pod has it no more, where it
    /// is of a kind that can be deleted.
    pub(in crate::agent) async fn delete(&self, key: &Key) -> Result<(), Failure> {
        let Some(delegated) = self.store.by_key(key) else { return Ok(()) };
        if delegated.phase == Phase::Live {
            self.note(&delegated, Phase::Releasing)?;
        }
        let deadline = Instant::now() + self.settings.call();
        let calls = self.store.lock_calls(key, deadline).await?;
        let taken_back = self.take_back(&delegated, &calls).await;
        // What plugins have half made, or can't be asked to take back.
        if taken_back.is_err() || delegated.result.is_none() {
            delete_link(&delegated).await;
        }
        taken_back?;
        Milestone::DelegateDeleted.pass();
        self.store.remove(key);
        Ok(())
    }

    /// Notes that somebody is about to take an interface back that was not. False: somebody is already.
    pub(in crate::agent) fn begin_again(&self, key: &Key) -> bool {
        locked(&self.again).insert(key.clone())
    }

    /// That this is over.
    pub(in crate::agent) fn end_again(&self, key: &Key) {
        locked(&self.again).remove(key);
    }

    /// Has an interface looked at by its plugins.
    ///
    /// # Errors
    /// What they find, or that it is not kept as it should be.
    pub(in crate::agent) async fn check(&self, delegated: &Delegated) -> Result<(), Failure> {
        let deadline = Instant::now() + self.settings.call();
        if Version::parse(&delegated.version) < Some(Version::V0_4_0)
            || delegated.chain.is_unchecked
        {
            return Ok(());
        }
        let calls = self.store.lock_calls(&delegated.key, deadline).await?;
        for configuration in &delegated.chain.plugins {
            let document = document(delegated, configuration, delegated.result.as_ref());
            self.call(delegated, "CHECK", &document, &calls, deadline).await?;
        }
        Ok(())
    }

    /// Calls the plugins one after the other, each with what the one before has answered.
    async fn make(
        &self,
        delegated: &Delegated,
        calls: &File,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let mut previous = None;
        for configuration in &delegated.chain.plugins {
            let document = document(delegated, configuration, previous.as_ref());
            let answer = self.call(delegated, "ADD", &document, calls, deadline).await?;
            previous = Some(answer.ok_or_else(|| {
                failed(delegated, &format!("plugin {} answered nothing", document["type"]))
            })?);
        }
        previous.ok_or_else(|| failed(delegated, "it has no plugins"))
    }

    /// Calls all plugins, the last one first, whatever becomes of the others.
    async fn take_back(&self, delegated: &Delegated, calls: &File) -> Result<(), Failure> {
        let mut taken_back = Ok(());
        for configuration in delegated.chain.plugins.iter().rev() {
            let deadline = Instant::now() + self.settings.call();
            let document = document(delegated, configuration, delegated.result.as_ref());
            let called = self.call(delegated, "DEL", &document, calls, deadline).await;
            taken_back = taken_back.and(called.map(drop));
        }
        taken_back
    }

    async fn call(
        &self,
        delegated: &Delegated,
        verb: &str,
        document: &Value,
        calls: &File,
        deadline: Instant,
    ) -> Result<Option<Value>, Failure> {
        let name = document["type"].as_str().unwrap_or_default();
        let program = self.program(delegated, name)?;
        let surroundings = self.surroundings(delegated);
        let called = plugin::call(&program, verb, &surroundings, document, calls, deadline).await;
        called.map_err(|trouble| {
            failed(delegated, &format!("{verb} of {}: {trouble}", program.display()))
        })
    }

    fn program(&self, delegated: &Delegated, name: &str) -> Result<PathBuf, Failure> {
        plugin::find(&self.settings.plugins, name).ok_or_else(|| {
            let folders = self.folders(", ");
            failed(delegated, &format!("there is no plugin {name} in {folders}"))
        })
    }

    fn folders(&self, separator: &str) -> String {
        let folders: Vec<_> =
            self.settings.plugins.iter().map(|folder| folder.display().to_string()).collect();
        folders.join(separator)
    }

    fn surroundings(&self, delegated: &Delegated) -> Surroundings {
        // Of a namespace that has ended, another may be at the same path by now.
        let living = delegated.netns.living().map(|_| delegated.netns.path.clone());
        Surroundings {
            container_id: delegated.key.container_id.clone(),
            netns: living.unwrap_or_default(),
            interface_name: delegated.key.interface_name.clone(),
            arguments: delegated.arguments.clone(),
            folders: self.folders(":"),
        }
    }

    /// Asks the plugins which versions they speak, of which each program is asked once.
    async fn common_version(
        &self,
        delegated: &Delegated,
        calls: &File,
        deadline: Instant,
    ) -> Result<&'static str, Failure> {
        let plugins = delegated.chain.plugins.iter().filter_map(|plugin| plugin["type"].as_str());
        let plugins: BTreeSet<_> = plugins.collect();
        let mut spoken = Vec::new();
        for name in &plugins {
            let program = self.program(delegated, name)?;
            spoken.push(match self.known.of(&program) {
                Some(versions) => versions,
                None => self.ask_versions(delegated, &program, calls, deadline).await?,
            });
        }
        let declared = &delegated.chain.versions;
        let version = versions::common(declared, &spoken).ok_or_else(|| {
            let names = plugins.into_iter().collect::<Vec<_>>().join(", ");
            let declared = declared.join(", ");
            failed(delegated, &format!(
                "there is no version of the CNI specification up to its `cniVersion` {declared} \
                 that {names} and this agent ({}) all speak", Version::list()
            ))
        })?;
        Ok(version.as_str())
    }

    async fn ask_versions(
        &self,
        delegated: &Delegated,
        program: &Path,
        calls: &File,
        deadline: Instant,
    ) -> Result<Vec<Version>, Failure> {
        let surroundings = self.surroundings(delegated);
        let document = json!({ "cniVersion": Version::NEWEST.as_str() });
        let answer =
            plugin::call(program, "VERSION", &surroundings, &document, calls, deadline).await;
        let answer = answer.map_err(|trouble| {
            failed(delegated, &format!("VERSION of {}: {trouble}", program.display()))
        })?;
        let versions = versions::supported(answer.as_ref());
        self.known.learn(program, versions.clone());
        Ok(versions)
    }
}

/// What a plugin reads.
fn document(
    delegated: &Delegated,
    configuration: &Map<String, Value>,
    previous: Option<&Value>,
) -> Value {
    let mut document = configuration.clone();
    document.insert("name".into(), delegated.network().into());
    document.insert("cniVersion".into(), delegated.version.clone().into());
    let wishes = delegated.wishes.iter().filter(|(wish, _)| has_capability(configuration, wish));
    let wishes: Map<_, _> = wishes.map(|(wish, value)| (wish.clone(), value.clone())).collect();
    if !wishes.is_empty() {
        document.insert("runtimeConfig".into(), wishes.into());
    }
    if let Some(previous) = previous {
        document.insert("prevResult".into(), previous.clone());
    }
    document.into()
}

/// A pod's first interface is the DPU's.
fn leads(key: &Key, network: &str) -> Failure {
    let message = format!(
        "network {network} is made by other plugins, so that {} can't be of it: only a pod's further networks can",
        key.interface_name
    );
    Failure::new(Reason::Unsupported, message)
}

/// Before anything is made: what is there already is not ours to take back.
async fn refuse_taken_name(delegated: &Delegated) -> Result<(), Failure> {
    match link_in_pod(delegated).await? {
        None => Ok(()),
        Some(link) => {
            let message = format!("there is an interface {} in the pod already", link.name);
            Err(Failure::new(Reason::InterfaceExists, message))
        }
    }
}

/// The link of its name in the pod.
async fn link_in_pod(delegated: &Delegated) -> Result<Option<Link>, Failure> {
    let netns = delegated.netns.living().ok_or_else(|| {
        let message = format!("the network namespace {} has ended", delegated.netns.path);
        Failure::new(Reason::NetnsInvalid, message)
    })?;
    let name = delegated.key.interface_name.clone();
    let looked = spawn_blocking(move || Rtnl::open_in(&netns)?.link_by_name(&name)).await;
    let looked = looked.map_err(|error| defect(&error))?;
    looked.map_err(|error| Failure::new(Reason::MoveFailed, error.to_string()))
}

/// Deletes the link of its name in the pod. Hardware can't be deleted: it comes home by itself when the pod ends.
async fn delete_link(delegated: &Delegated) {
    let Some(netns) = delegated.netns.living() else { return };
    let name = delegated.key.interface_name.clone();
    let deleted = spawn_blocking(move || delete_link_in(&netns, &name)).await;
    if let Ok(Err(error)) = deleted {
        tracing::warn!(key = %delegated.key, "what is left of it stays in the pod: {error}");
    }
}

fn delete_link_in(netns: &Netns, name: &str) -> Result<(), netlink::Error> {
    let mut rtnl = Rtnl::open_in(netns)?;
    match rtnl.link_by_name(name)? {
        Some(link) => rtnl.change(Request::delete_link(link.index)),
        None => Ok(()),
    }
}
