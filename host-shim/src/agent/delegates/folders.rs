//! The folders of files that define networks, which are read for each ADD.
//!
//! A folder may be on a disk that does not answer: then it is waited for within bounds, and few threads hang at it. While
//! a caller's folder can't be read, its networks are unknown, and all others are as without it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use offload_proto::{Failure, Reason};
use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout_at};

use super::{catalogue::Catalogue, definitions::invalid};
use crate::{
    agent::defect::defect,
    protocol::{AddRequest, CallerFolders},
};

/// How long a folder has to answer. A caller that gives up earlier is not kept waiting.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How many threads read the agent's folder at a time, and how many those of callers. One that hangs counts until its
/// disk answers.
const READERS: usize = 2;
/// The threads for both.
pub(in crate::agent) const FOLDER_READERS: usize = 2 * READERS;

/// Where networks are defined that other plugins make.
#[derive(Debug)]
pub(super) struct Folders {
    /// The agent's own folder. `None`: no network is other plugins'.
    own: Option<PathBuf>,
    own_readers: Readers,
    callers_readers: Readers,
    /// Why folders defined nothing when they were read last.
    hindrances: Mutex<BTreeMap<PathBuf, Hindrance>>,
}

/// Why a folder defines nothing.
#[derive(Debug)]
enum Hindrance {
    Missing,
    Unreadable(Failure),
}

/// Turns at reading.
#[derive(Debug)]
struct Readers(Arc<Semaphore>);

impl Default for Readers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(READERS)))
    }
}

impl Readers {
    /// Reads a folder on a thread that may hang.
    ///
    /// # Errors
    /// The failure of `read`. [`Reason::DelegateInvalid`]: the folder does not answer in time.
    async fn read<T: Send + 'static>(
        &self,
        folder: &Path,
        deadline: Instant,
        read: impl FnOnce(&Path) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let deadline = deadline.min(Instant::now() + TIMEOUT);
        let reading = async {
            let turn = Arc::clone(&self.0).acquire_owned().await;
            let path = folder.to_owned();
            let thread = spawn_blocking(move || {
                let read = read(&path);
                // Not when its caller gives up.
                drop(turn);
                read
            });
            thread.await.map_err(|error| defect(&error))?
        };
        let silent = |_| Err(invalid(folder, "its disk did not answer in time"));
        timeout_at(deadline.into(), reading).await.unwrap_or_else(silent)
    }
}

impl Folders {
    /// The agent's own folder, and those that callers name.
    pub(super) fn new(own: Option<PathBuf>) -> Self {
        let (own_readers, callers_readers) = Default::default();
        Self { own, own_readers, callers_readers, hindrances: Mutex::default() }
    }

    /// What the agent's own folder defines.
    ///
    /// # Errors
    /// [`Reason::DelegateInvalid`]: it can't be read.
    pub(super) async fn own(&self, deadline: Instant) -> Result<Catalogue, Failure> {
        let Some(folder) = &self.own else { return Ok(Catalogue::default()) };
        self.read(&self.own_readers, folder, deadline, Catalogue::read).await
    }

    /// The same with the networks that a caller defines, which come before the host's of these names.
    pub(super) async fn with_callers(
        &self,
        own: Catalogue,
        folders: &CallerFolders,
        deadline: Instant,
    ) -> Catalogue {
        let (Some(_), Some(folder)) = (&self.own, &folders.networks) else { return own };
        let read = Catalogue::read_callers;
        match self.read(&self.callers_readers, folder, deadline, read).await {
            Ok(callers) => callers.over(own),
            Err(failure) => {
                tracing::warn!(%failure, "ignoring a caller's networks");
                own
            }
        }
    }

    async fn read(
        &self,
        readers: &Readers,
        folder: &Path,
        deadline: Instant,
        read: fn(&Path) -> Result<Catalogue, Failure>,
    ) -> Result<Catalogue, Failure> {
        let look = move |folder: &Path| Ok((read(folder)?, folder.is_dir()));
        let found = readers.read(folder, deadline, look).await;
        let hindrance = match &found {
            Ok((_, true)) => None,
            Ok((_, false)) => Some(Hindrance::Missing),
            Err(failure) => Some(Hindrance::Unreadable(failure.clone())),
        };
        self.note(folder, hindrance);
        found.map(|(catalogue, _)| catalogue)
    }

    fn note(&self, folder: &Path, hindrance: Option<Hindrance>) {
        let mut hindrances = self.hindrances.lock();
        match hindrance {
            Some(hindrance) => hindrances.insert(folder.to_owned(), hindrance),
            None => hindrances.remove(folder),
        };
    }

    /// A failure that names the folders whose files define networks, too, if a network is unknown that an ADD has
    /// `asked` for. A folder that can't be read is its reason: the network may be defined there.
    pub(super) fn with_folders(&self, failure: Failure, asked: &AddRequest) -> Failure {
        let further = asked.further.iter().map(|further| &further.interface.network);
        let mut names = further.chain([&asked.interface.network]).map(|name| format!("{name:?}"));
        let is_unknown = |name: String| {
            failure.reason == Reason::NetworkUnknown && failure.message.contains(&name)
        };
        if !names.any(is_unknown) {
            return failure;
        }
        match (&self.own, &asked.folders.networks) {
            (Some(own), callers) => self.naming(&failure, callers.iter().chain([own])),
            (None, Some(callers)) => {
                let message = format!(
                    "{}; networks in {} (CNI_CONF_DIR) count where the agent's configuration has [delegates]",
                    failure.message,
                    callers.display()
                );
                Failure { message, ..failure }
            }
            (None, None) => failure,
        }
    }

    fn naming<'a>(&self, unknown: &Failure, folders: impl Iterator<Item = &'a PathBuf>) -> Failure {
        let hindrances = self.hindrances.lock();
        let (mut read, mut unread) = (Vec::new(), Vec::new());
        for folder in folders {
            let path = folder.display();
            match hindrances.get(folder) {
                None => read.push(format!("a file in {path}")),
                Some(Hindrance::Missing) => {
                    read.push(format!("the folder {path}, which is not there,"));
                }
                Some(Hindrance::Unreadable(why)) => unread.push(why.message.clone()),
            }
        }
        let mut message = unknown.message.clone();
        if !read.is_empty() {
            message = format!("{message}, nor does {} define it", read.join(" or "));
        }
        if unread.is_empty() {
            return Failure::new(unknown.reason, message);
        }
        Failure::new(Reason::DelegateInvalid, format!("{message}; {}", unread.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        sync::{
            atomic::{AtomicUsize, Ordering},
            mpsc::channel,
        },
    };

    use model::InterfaceRequest;
    use test_clock::{wait_until_async, within};

    use super::*;
    use crate::{
        agent::delegates::{DelegateSettings, Delegates},
        protocol::{FurtherInterface, Key},
    };

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn hung_folder_is_waited_for_within_bounds() {
        let (readers, begun) = (Readers::default(), Arc::new(AtomicUsize::new(0)));
        let (disk, answers) = channel::<()>();
        let answers = Arc::new(Mutex::new(answers));
        for _ in 0..=READERS {
            let (begun, answers) = (Arc::clone(&begun), Arc::clone(&answers));
            let hang = move |_: &Path| {
                begun.fetch_add(1, Ordering::Relaxed);
                let _ = answers.lock().recv();
                Ok(())
            };
            let deadline = Instant::now() + Duration::from_millis(100);
            let reading = readers.read(Path::new("/hung"), deadline, hang);
            let read = within(LIMIT, reading).await.expect("it waits for the disk");
            assert_eq!(read.unwrap_err().reason, Reason::DelegateInvalid);
        }
        assert_eq!(begun.load(Ordering::Relaxed), READERS, "threads that hang");
        drop(disk);
        let are_back = async || readers.0.available_permits() == READERS;
        wait_until_async("the disk to answer", are_back).await;
        let read = readers.read(Path::new("/"), Instant::now() + LIMIT, |_| Ok(7)).await;
        assert_eq!(read, Ok(7));
    }

    #[tokio::test]
    async fn unreadable_network_folder_refuses_only_its_users() {
        let host = tempfile::tempdir().unwrap();
        let no_folder = host.path().join("storage.conf");
        fs::write(&no_folder, r#"{"name": "storage", "type": "macvlan"}"#).unwrap();
        let networks = host.path().to_owned();
        let settings = DelegateSettings { networks, ..DelegateSettings::default() };
        let delegates = Delegates::open(Some(settings), host.path().join("made")).unwrap();
        let further = |(interface_name, network): (&str, &str)| FurtherInterface {
            interface_name: interface_name.into(),
            interface: InterfaceRequest { network: network.into(), ..Default::default() },
            ..FurtherInterface::default()
        };
        let key = Key { container_id: "c".into(), interface_name: "eth0".into() };
        let folders =
            CallerFolders { networks: Some(no_folder.clone()), ..CallerFolders::default() };
        let asked = AddRequest {
            further: [("net1", "storage"), ("net2", "green")].map(further).into(),
            folders,
            ..AddRequest::plain(key, "/n".into(), "blue".into())
        };
        let deadline = Instant::now() + LIMIT;
        let (own, delegations) = delegates.take_out(asked.clone(), deadline).await.unwrap();
        assert_eq!(delegations.len(), 1, "the host's own file defines it");
        assert_eq!(own.further[0].interface.network, "green");
        let unknown = Failure::new(Reason::NetworkUnknown, r#"there is no network "green""#);
        let refused = delegates.with_folder(unknown, &asked);
        assert_eq!(refused.reason, Reason::DelegateInvalid);
        assert!(refused.message.contains(no_folder.to_str().unwrap()), "{refused}");
    }
}
