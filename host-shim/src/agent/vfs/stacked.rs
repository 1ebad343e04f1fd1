//! Links that are stacked on VFs: a pod that made one keeps it when its VF leaves, and sends through
//! the VF wherever that is.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use netlink::{Error, Link, Netns, NetnsId, Rtnl};
use offload_proto::Failure;
use tokio::task::spawn_blocking;

use super::{host::Host, namespaces::namespaces};
use crate::{agent::defect::defect, vf_source::lower_of};

/// A namespace that ended, or a process that did, after they were listed is not among those that are
/// listed next. What can't be looked into so often is there.
const ATTEMPTS: usize = 3;

/// What is stacked on links of the host's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stacked {
    /// By their index: one sentence each.
    on: HashMap<u32, Vec<String>>,
    /// Upper devices that may exist, because a namespace cannot be read: one sentence each.
    unseen: Vec<String>,
}

impl Stacked {
    /// What is stacked on a link.
    pub(super) fn on(&self, index: u32) -> &[String] {
        self.on.get(&index).map_or(&[], Vec::as_slice)
    }

    /// Whether nothing is stacked on a link for sure.
    pub(super) fn is_bare(&self, index: u32) -> bool {
        self.on(index).is_empty() && self.unseen.is_empty()
    }

    /// Why more may be stacked on any link.
    pub(super) fn unseen(&self) -> &[String] {
        &self.unseen
    }

    /// What is stacked on a link, or may be.
    pub(super) fn told_of(&self, index: u32) -> Vec<String> {
        self.on(index).iter().chain(&self.unseen).cloned().collect()
    }

    /// Whether nothing is stacked on any link for sure.
    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// What is stacked in a pod's namespace. No walk may find that later: a namespace can go on living without a path
    /// that leads to it, in sockets and descriptors.
    pub(super) fn in_pod(pod: &Netns, path: &Path, host: &Netns) -> Self {
        let mut found = Self::default();
        let inside = Rtnl::open_in(pod);
        match told(inside.and_then(|mut inside| stacked_on_those_of(&mut inside, host))) {
            Ok(links) => found.note(&links, path),
            Err(why) => found.unseen.push(not_looked_into(path, &why)),
        }
        found
    }

    /// One thing.
    #[cfg(test)]
    pub(super) fn found_on(index: u32, what: &str) -> Self {
        Self { on: HashMap::from([(index, vec![what.to_owned()])]), ..Self::default() }
    }

    /// A walk that found nothing, and could not look into something.
    #[cfg(test)]
    pub(super) fn unknown(why: &str) -> Self {
        Self { unseen: vec![why.to_owned()], ..Self::default() }
    }

    fn note(&mut self, links: &[(u32, Link)], path: &Path) {
        for (lower, link) in links {
            self.on.entry(*lower).or_default().push(stacked(link, path));
        }
    }
}

/// The last walk through all namespaces. One is made at a time, for each takes long where there are many
/// pods; it serves all who wanted one before it began.
#[derive(Debug, Default)]
struct LastWalk {
    begun: AtomicU64,
    /// The number of the last walk, and what it found.
    last: tokio::sync::Mutex<(u64, Arc<Stacked>)>,
}

impl LastWalk {
    /// What a walk finds that begins from now on: an earlier one may have passed by already.
    async fn found_from_now(
        &self,
        walk: impl AsyncFnOnce() -> Result<Stacked, Failure>,
    ) -> Result<Arc<Stacked>, Failure> {
        let next = self.begun.load(Ordering::SeqCst) + 1;
        let mut last = self.last.lock().await;
        // The previous holder of the lock may have started its walk after this one was requested.
        if last.0 < next {
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            *last = (number, Arc::new(walk().await?));
        }
        Ok(Arc::clone(&last.1))
    }
}

/// Walks through all namespaces that can be reached.
#[derive(Debug)]
pub(super) struct Walks {
    host: Arc<Host>,
    /// Folders through which further namespaces can be reached.
    reach: Vec<PathBuf>,
    last: LastWalk,
}

impl Walks {
    pub(super) fn new(host: Arc<Host>, reach: Vec<PathBuf>) -> Self {
        Self { host, reach, last: LastWalk::default() }
    }

    /// The upper devices of links in the host's namespace. The lower link does not show those in other namespaces, so
    /// all reachable namespaces are searched.
    ///
    /// # Errors
    /// Of kind *internal*.
    pub(super) async fn stacked_on_host(self: &Arc<Self>) -> Result<Arc<Stacked>, Failure> {
        let walk = async || {
            let walks = Arc::clone(self);
            spawn_blocking(move || walks.walk()).await.map_err(|error| defect(&error))
        };
        self.last.found_from_now(walk).await
    }

    fn walk(&self) -> Stacked {
        let mut found = Stacked::default();
        let mut seen = HashSet::new();
        for _ in 0..ATTEMPTS {
            found.unseen = self.walk_once(&mut seen, &mut found);
            if found.unseen.is_empty() {
                break;
            }
        }
        found
    }

    /// Searches the namespaces that were not `seen` yet, and adds those that cannot be read.
    fn walk_once(&self, seen: &mut HashSet<NetnsId>, found: &mut Stacked) -> Vec<String> {
        let mut namespaces = self.namespaces_in_reach();
        namespaces.retain(|id, _| !seen.contains(id));
        let mut unseen = Vec::new();
        for (id, path) in namespaces {
            match self.stacked_in(id, &path) {
                Ok(links) => {
                    seen.insert(id);
                    found.note(&links, &path);
                }
                Err(why) => unseen.push(not_looked_into(&path, &why)),
            }
        }
        unseen
    }

    /// One path of each namespace.
    fn namespaces_in_reach(&self) -> BTreeMap<NetnsId, PathBuf> {
        let mut found = namespaces(&self.reach, self.host.netns().id().dev);
        let of_pods = self.host.records().all().into_iter().map(|record| record.netns.clone());
        let living = of_pods.filter(|netns| netns.living().is_some());
        found.extend(living.map(|netns| (netns.id, PathBuf::from(netns.path))));
        found.insert(self.host.netns().id(), PathBuf::new());
        found
    }

    /// The links of a namespace that are stacked on links of the host's, each with the index of that. A
    /// namespace that the agent may not enter is none of a pod: it belongs to who is above the agent.
    fn stacked_in(&self, id: NetnsId, path: &Path) -> Result<Vec<(u32, Link)>, String> {
        if id == self.host.netns().id() {
            return told(self.host.rtnl().and_then(|mut host| stacked_on_own(&mut host)));
        }
        let netns = match Netns::open(path) {
            Ok(netns) if netns.id() == id => netns,
            Ok(_) => return Err("the path leads to another namespace now".to_owned()),
            Err(error) if error.is_forbidden() => return Ok(Vec::new()),
            Err(error) => return Err(error.to_string()),
        };
        match Rtnl::open_in(&netns) {
            Err(error) if error.is_forbidden() => Ok(Vec::new()),
            inside => told(
                inside.and_then(|mut inside| stacked_on_those_of(&mut inside, self.host.netns())),
            ),
        }
    }
}

fn told<T>(looked: Result<T, Error>) -> Result<T, String> {
    looked.map_err(|error| error.to_string())
}

fn stacked_on_own(host: &mut Rtnl) -> Result<Vec<(u32, Link)>, Error> {
    let links = host.links()?.into_iter().filter(|link| link.peer_netns.is_none());
    Ok(links.filter_map(with_lower).collect())
}

fn stacked_on_those_of(inside: &mut Rtnl, host: &Netns) -> Result<Vec<(u32, Link)>, Error> {
    let stacked = inside.links()?.into_iter().filter(|link| link.peer_netns.is_some());
    let stacked: Vec<_> = stacked.filter_map(with_lower).collect();
    if stacked.is_empty() {
        return Ok(stacked);
    }
    let number = inside.number_of(host)?;
    let is_of_host = |(_, link): &(u32, Link)| number.is_some() && link.peer_netns == number;
    Ok(stacked.into_iter().filter(is_of_host).collect())
}

/// The link with the index of what it is stacked on, if it is.
fn with_lower(link: Link) -> Option<(u32, Link)> {
    lower_of(&link).map(|lower| (lower, link))
}

fn stacked(link: &Link, path: &Path) -> String {
    let kind = link.kind.as_deref().unwrap_or("link");
    format!("the {kind} {} is an upper device of it in {}", link.name, name_of(path))
}

fn not_looked_into(path: &Path, why: &str) -> String {
    format!("cannot list its upper devices in {}: {why}", name_of(path))
}

fn name_of(path: &Path) -> String {
    match path.as_os_str().is_empty() {
        true => "the host's network namespace".to_owned(),
        false => format!("the network namespace {}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use test_clock::within;
    use tokio::{
        sync::oneshot,
        task::{JoinHandle, yield_now},
    };

    use super::*;
    use crate::agent::vfs::{records::tests::record, room::tests::vfs};

    fn found(what: &str) -> Stacked {
        Stacked::found_on(7, what)
    }

    /// A request during a walk cannot rely on it, and shares the next walk with all others.
    #[tokio::test]
    async fn walk_serves_all_earlier_requests() {
        let walks = Arc::new(LastWalk::default());
        let (end_first, first_ends) = oneshot::channel::<()>();
        let walking = tokio::spawn({
            let walks = Arc::clone(&walks);
            async move {
                let walk = async || {
                    first_ends.await.unwrap();
                    Ok(found("first"))
                };
                walks.found_from_now(walk).await
            }
        });
        yield_now().await;
        let wait_for_next = |what: &'static str| {
            let walks = Arc::clone(&walks);
            tokio::spawn(async move { walks.found_from_now(async || Ok(found(what))).await })
        };
        let (one, other) = (wait_for_next("second"), wait_for_next("third"));
        yield_now().await;
        end_first.send(()).unwrap();
        let limit = Duration::from_secs(10);
        let of = async |waiting: JoinHandle<Result<_, _>>| {
            within(limit, waiting).await.unwrap().unwrap().unwrap()
        };
        assert_eq!(*of(walking).await, found("first"));
        assert_eq!(*of(one).await, found("second"));
        assert_eq!(*of(other).await, found("second"));
        let later = wait_for_next("fourth");
        assert_eq!(*of(later).await, found("fourth"), "no caller gets an earlier check's findings");
    }

    #[tokio::test]
    async fn ended_namespace_is_no_longer_searched() {
        let (vfs, _folder) = vfs();
        let walks = Walks::new(Arc::clone(vfs.host()), Vec::new());
        let mut ended = record("a", "c");
        ended.netns.path = "/nowhere".into();
        vfs.records().keep(&Arc::new(ended));
        let reached = walks.namespaces_in_reach();
        assert!(reached.values().all(|path| path != Path::new("/nowhere")));
    }

    #[tokio::test]
    async fn replaced_namespace_path_is_not_searched() {
        let (vfs, _folder) = vfs();
        let walks = Walks::new(Arc::clone(vfs.host()), Vec::new());
        let own = Netns::current().unwrap().id();
        let another = NetnsId { inode: own.inode + 1, ..own };
        let why = walks.stacked_in(another, Path::new("/proc/self/ns/net")).unwrap_err();
        let told = not_looked_into(Path::new("/x"), &why);
        assert!(
            told.contains("network namespace /x: ") && told.contains("another namespace"),
            "{told}"
        );
    }
}
