//! The record of an interface of other plugins, from before they are called until they have deleted it. It contains
//! everything that a deletion needs, without the network's file, the network or the agent of that time.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bootstrap::{private_file, private_folder};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use offload_proto::{Failure, Reason, v1};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::sleep;

use super::{additions::Additions, catalogue::Chain, default_routes::DefaultRoutes, lease};
use crate::{
    agent::vfs::{Phase, PodNetns},
    protocol::{ExpectedInterface, Key},
    whole_file,
};

/// How often it is looked whether a program of an earlier agent has ended.
const LOOK: Duration = Duration::from_millis(20);

/// An interface that other plugins make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::agent) struct Delegated {
    /// Its key.
    pub key: Key,
    /// The interface of the pod whose attachment leads it.
    pub group_interface: String,
    /// The pod's namespace.
    pub netns: PodNetns,
    /// As an attachment's record has it.
    pub phase: Phase,
    pub(super) chain: Chain,
    /// The specification's version that its plugins are spoken to in.
    pub(super) version: String,
    /// `CNI_ARGS`
    pub(super) arguments: String,
    /// `runtimeConfig`, of which each plugin gets what it has the capabilities for.
    pub(super) wishes: Map<String, Value>,
    /// By which interface the pod's default routes go.
    pub(super) default_routes: DefaultRoutes,
    /// The addresses of the DPU that the plugins get. `None`: they choose addresses.
    pub(super) lease: Option<v1::FurtherLease>,
    /// What the last of its plugins has answered. `None`: they have not made it yet.
    pub(super) result: Option<Value>,
    /// The same as an attachment, which has no VF.
    pub(super) attachment: Option<v1::Attachment>,
    /// What is set beside what its plugins make. `None`: nothing, or not yet.
    pub(super) added: Option<v1::Attachment>,
}

impl Delegated {
    /// The key of the attachment that leads it.
    pub(in crate::agent) fn group_key(&self) -> Key {
        Key {
            container_id: self.key.container_id.clone(),
            interface_name: self.group_interface.clone(),
        }
    }

    /// The network that it is on, and where that is defined.
    pub(in crate::agent) fn definition(&self) -> String {
        let Chain { network, file, .. } = &self.chain;
        format!("{network}, which {} defines", file.display())
    }

    /// The network that it is on.
    pub(in crate::agent) fn network(&self) -> &str {
        &self.chain.network
    }

    /// What its plugins have made. `None`: nothing yet, or not all of it.
    pub(in crate::agent) fn attachment(&self) -> Option<&v1::Attachment> {
        self.attachment.as_ref()
    }

    /// What is set beside what they have made. `None`: nothing, or not yet.
    pub(in crate::agent) fn added(&self) -> Option<&v1::Attachment> {
        self.added.as_ref()
    }

    /// The same, as of a pod that has ended.
    pub(super) fn without_netns(&self) -> Self {
        let netns = PodNetns { path: String::new(), ..self.netns.clone() };
        Self { netns, ..self.clone() }
    }

    /// What a runtime was told of it.
    pub(in crate::agent) fn promise(&self) -> ExpectedInterface {
        let made = self.attachment.clone().unwrap_or_default();
        ExpectedInterface {
            interface_name: self.key.interface_name.clone(),
            mac: (!made.mac.is_empty()).then_some(made.mac),
            addresses: made.addresses.into_iter().map(|held| held.address).collect(),
            device: None,
        }
    }

    /// What is to be set beside what its plugins have made, which may meet what the pod has by others. `None`:
    /// nothing.
    pub(in crate::agent) fn to_be_added(&self) -> Option<v1::Attachment> {
        let made = self.attachment.as_ref()?;
        let additions = self.chain.additions.of(&made.addresses);
        // First those to the gateways that others go by.
        let leased = self.lease.iter().flat_map(lease::routes);
        let routes: Vec<_> =
            leased.chain(additions.routes).chain(self.default_routes.routes()).collect();
        let is_any = self.chain.additions != Additions::default()
            || !self.default_routes.families_asked_for().is_empty()
            || !routes.is_empty();
        let key = Some(self.key.clone().into());
        is_any.then_some(v1::Attachment { key, routes, ..additions })
    }

    /// The same with what is set beside.
    pub(super) fn with(&self, added: v1::Attachment) -> Self {
        let mut delegated = self.clone();
        if let Some(attachment) = &mut delegated.attachment {
            attachment.routes.extend(added.routes.clone());
            attachment.rules = added.rules.clone();
            attachment.sysctls = added.sysctls.clone();
        }
        Self { added: Some(added), ..delegated }
    }
}

/// What is kept, in files and in memory: a folder for each pod, with two files for each interface.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    kept: Mutex<BTreeMap<Key, Arc<Delegated>>>,
}

impl Store {
    /// Reads a folder, which may be absent. Damaged files stay and are logged.
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        let mut kept = BTreeMap::new();
        sweep(&folder)?;
        for path in paths(&folder)? {
            match read(&path) {
                Ok(delegated) => {
                    kept.insert(delegated.key.clone(), Arc::new(delegated));
                }
                Err(error) => {
                    let path = path.display();
                    tracing::error!(%path, %error, "a record of an interface of other plugins is damaged");
                }
            }
        }
        Ok(Self { folder, kept: Mutex::new(kept) })
    }

    pub(super) fn by_key(&self, key: &Key) -> Option<Arc<Delegated>> {
        self.lock().get(key).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Delegated>> {
        self.lock().values().cloned().collect()
    }

    /// Writes it through to the operating system: it has to outlive the agent, and not the host.
    pub(super) fn write(&self, delegated: Delegated) -> Result<Arc<Delegated>, Failure> {
        let text = serde_json::to_vec(&delegated).map_err(|error| unavailable(&error))?;
        let path = self.path(&delegated.key, "json");
        whole_file::swap(&path, &text).map_err(|error| unavailable(&error))?;
        let delegated = Arc::new(delegated);
        self.lock().insert(delegated.key.clone(), Arc::clone(&delegated));
        Ok(delegated)
    }

    /// Marks the interface for deletion, even if the disk refuses the write: the next agent then finds it as live, and
    /// deletes it once its pod has ended.
    pub(super) fn give_up(&self, delegated: &Delegated) {
        let given_up = Delegated { phase: Phase::Releasing, ..delegated.clone() };
        if let Err(failure) = self.write(given_up.clone()) {
            tracing::warn!(key = %delegated.key, %failure, "cannot write the record; the interface is deleted anyway");
            self.lock().insert(given_up.key.clone(), Arc::new(given_up));
        }
    }

    /// Removes the record. If it reappears after a crash, deleting the interface again is harmless.
    pub(super) fn remove(&self, key: &Key) {
        for ending in ["json", "call"] {
            if let Err(error) = fs::remove_file(self.path(key, ending)) {
                tracing::debug!(%key, %error, "cannot remove a file of a deleted interface");
            }
        }
        // Unless there are others of the same pod.
        let _ = fs::remove_dir(self.folder.join(&key.container_id));
        self.lock().remove(key);
    }

    /// Waits until no program is at work on an interface, and keeps others away. The file is what programs read; who
    /// has it open, as one that an earlier agent has left behind, has the lock.
    pub(super) async fn lock_calls(
        &self,
        key: &Key,
        deadline: Instant,
    ) -> Result<Flock<File>, Failure> {
        let mut file = self.open_calls(key).map_err(|error| unavailable(&error))?;
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(locked) => return Ok(locked),
                Err((file, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file,
                Err((_, Errno::EWOULDBLOCK)) => return Err(still_called(key)),
                Err((_, errno)) => return Err(unavailable(&errno)),
            };
            sleep(LOOK).await;
        }
    }

    fn open_calls(&self, key: &Key) -> io::Result<File> {
        let folder = self.folder.join(&key.container_id);
        private_folder(&folder).map_err(io::Error::other)?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        private_file(&self.path(key, "call"), &mut options)
    }

    fn path(&self, key: &Key, ending: &str) -> PathBuf {
        self.folder.join(&key.container_id).join(format!("{}.{ending}", key.interface_name))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Delegated>>> {
        self.kept.lock()
    }
}

/// Removes what an agent has left that died while it wrote of an interface, or forgot it. No program is at work on what
/// is not kept: it is kept before the first one is called, until the last one has ended.
fn sweep(folder: &Path) -> io::Result<()> {
    for pod in entries(folder)? {
        for path in entries(&pod)?.into_iter().filter(|path| is_left(path)) {
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "cannot remove a file of an earlier agent");
            }
        }
        // Unless something is kept of it.
        let _ = fs::remove_dir(pod);
    }
    Ok(())
}

fn is_left(path: &Path) -> bool {
    match path.extension() {
        Some(ending) if ending == "call" => !path.with_extension("json").exists(),
        ending => ending == whole_file::unfinished(path).extension(),
    }
}

/// The files of all interfaces.
fn paths(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for pod in entries(folder)? {
        let files = entries(&pod)?;
        paths.extend(files.into_iter().filter(|path| path.extension() == Some("json".as_ref())));
    }
    Ok(paths)
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

fn read(path: &Path) -> io::Result<Delegated> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

fn still_called(key: &Key) -> Failure {
    let message =
        format!("a plugin that was called for {key} before the agent's last start still runs");
    Failure::new(Reason::Releasing, message)
}

fn unavailable(error: &dyn std::error::Error) -> Failure {
    let message = format!("cannot write the record of an interface of other plugins: {error}");
    Failure::new(Reason::RecordsUnavailable, message)
}

#[cfg(test)]
pub(super) mod tests {
    use futures::FutureExt;
    use netlink::NetnsId;

    use super::*;

    pub(in crate::agent::delegates) fn delegated(interface_name: &str) -> Delegated {
        Delegated {
            key: Key { container_id: "c".into(), interface_name: interface_name.into() },
            group_interface: "eth0".into(),
            netns: PodNetns { path: "/run/netns/c".into(), id: NetnsId { dev: 4, inode: 7 } },
            phase: Phase::Attaching,
            chain: Chain {
                network: "storage".into(),
                file: "/etc/storage.conf".into(),
                versions: vec!["1.0.0".into()],
                is_unchecked: false,
                plugins: vec![Map::from_iter([("type".to_owned(), "macvlan".into())])],
                additions: Additions::default(),
                uses_network_mtu: false,
                folders: Vec::new(),
            },
            version: "1.0.0".into(),
            arguments: String::new(),
            wishes: Map::new(),
            default_routes: DefaultRoutes::default(),
            lease: None,
            result: None,
            attachment: None,
            added: None,
        }
    }

    #[tokio::test]
    async fn delegate_record_outlives_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("delegates");
        let store = Store::open(path.clone()).unwrap();
        for interface in ["net1", "net2"] {
            let delegated = delegated(interface);
            drop(store.lock_calls(&delegated.key, Instant::now()).await.unwrap());
            store.write(delegated).unwrap();
        }
        fs::write(path.join("c/net3.json"), "{").unwrap();
        let again = Store::open(path.clone()).unwrap();
        let names: Vec<_> = again.all().iter().map(|one| one.key.interface_name.clone()).collect();
        assert_eq!(names, ["net1", "net2"]);
        fs::remove_file(path.join("c/net3.json")).unwrap();
        for one in again.all() {
            again.remove(&one.key);
        }
        assert!(entries(&path).unwrap().is_empty());
    }

    #[tokio::test]
    async fn files_of_killed_agent_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("delegates");
        let store = Store::open(path.clone()).unwrap();
        let kept = delegated("net1");
        drop(store.lock_calls(&kept.key, Instant::now()).await.unwrap());
        store.write(kept.clone()).unwrap();
        fs::write(path.join("c/net1.new"), "{").unwrap();
        let begun = Key { container_id: "begun".into(), ..kept.key.clone() };
        drop(store.lock_calls(&begun, Instant::now()).await.unwrap());
        fs::create_dir(path.join("forgotten")).unwrap();
        let again = Store::open(path.clone()).unwrap();
        assert_eq!(entries(&path).unwrap(), [path.join("c")]);
        let mut left = entries(&path.join("c")).unwrap();
        left.sort();
        assert_eq!(left, ["call", "json"].map(|ending| path.join("c/net1").with_extension(ending)));
        again.remove(&kept.key);
        assert!(entries(&path).unwrap().is_empty());
    }

    #[tokio::test]
    async fn abandoned_interface_is_deleted_despite_disk_errors() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("delegates")).unwrap();
        let live = Delegated { phase: Phase::Live, ..delegated("net1") };
        drop(store.lock_calls(&live.key, Instant::now()).await.unwrap());
        let live = store.write(live).unwrap();
        // In the place of a disk that is full.
        let pod = folder.path().join("delegates/c");
        fs::rename(&pod, folder.path().join("aside")).unwrap();
        fs::write(&pod, "").unwrap();
        store.give_up(&live);
        assert_eq!(store.by_key(&live.key).unwrap().phase, Phase::Releasing);
    }

    #[test]
    fn leased_routes_are_added_except_defaults() {
        let route = |destination: &str, kind: &str, table| v1::Route {
            destination: destination.into(),
            kind: kind.into(),
            table,
            ..v1::Route::default()
        };
        let onlink =
            v1::Route { gateway: "10.6.0.1".into(), onlink: true, ..route("10.5.0.0/16", "", 0) };
        let set = vec![
            route("10.9.0.1/32", "", 0),
            onlink,
            route("10.8.0.0/16", "blackhole", 0),
            route("::/0", "unreachable", 0),
            route("0.0.0.0/0", "", 7),
        ];
        let defaults = ["0.0.0.0/0", "::/0"].map(|everything| route(everything, "", 0));
        let routes = [&set[..], &defaults].concat();
        let leased = Delegated {
            lease: Some(v1::FurtherLease { routes, ..v1::FurtherLease::default() }),
            attachment: Some(v1::Attachment::default()),
            ..delegated("net1")
        };
        assert_eq!(leased.to_be_added().unwrap().routes, set);
        assert_eq!(Delegated { lease: None, ..leased }.to_be_added(), None);
    }

    #[tokio::test]
    async fn held_record_file_excludes_others() {
        let folder = tempfile::tempdir().unwrap();
        let key = delegated("net1").key;
        let [ours, theirs] = [(); 2].map(|()| Store::open(folder.path().into()).unwrap());
        let held = ours.lock_calls(&key, Instant::now()).await.unwrap();
        let program = held.try_clone().unwrap();
        // As by the end of an agent that is killed, which unlocks nothing.
        std::mem::forget(held);
        let failure = theirs.lock_calls(&key, Instant::now()).await.unwrap_err();
        assert_eq!(failure.reason, Reason::Releasing);
        let soon = Instant::now() + Duration::from_secs(30);
        let mut waiting = Box::pin(theirs.lock_calls(&key, soon));
        assert!((&mut waiting).now_or_never().is_none());
        program.unlock().unwrap();
        let _held = waiting.await.unwrap();
    }
}
