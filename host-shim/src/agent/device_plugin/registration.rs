//! Keeps one pool's resource registered with the kubelet: a socket of ours in its folder, and a call to its own socket.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bootstrap::private_socket;
use offload_proto::{
    kubelet::deviceplugin::{
        RegisterRequest, device_plugin_server::DevicePluginServer,
        registration_client::RegistrationClient,
    },
    v1::VfPool,
};
use tokio::{
    net::UnixListener,
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tokio_stream::{StreamExt, wrappers::UnixListenerStream};
use tonic::transport::{Endpoint, Server};

use super::{
    plugin::{Attention, OPTIONS, Plugin},
    settings::DevicePluginSettings,
};
use crate::agent::{authority::with_valid_authority, vfs::Vfs};

/// The version of the kubelet's device plugin API.
const VERSION: &str = "v1beta1";
/// How often the sockets are checked for a restart of the kubelet.
const LOOK: Duration = Duration::from_secs(1);
/// How many answer timeouts a kubelet has to start watching after registration: it first calls back for the options.
const ANSWERS_UNTIL_ASKED: u32 = 5;

pub(super) struct ResourceRegistration {
    settings: DevicePluginSettings,
    pool: String,
    pools: watch::Receiver<Vec<VfPool>>,
    vfs: Arc<Vfs>,
}

/// The identities of both sockets at registration.
#[derive(PartialEq)]
struct RegisteredSockets {
    own: Option<FileIdentity>,
    kubelet: Option<FileIdentity>,
}

/// Our socket in the kubelet's folder, removed at the end: the kubelet takes a leftover for a plugin that will appear.
/// A socket that replaced it is another agent's and stays.
struct OwnSocket {
    path: PathBuf,
    file: Option<FileIdentity>,
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        if self.file.is_some() && identity(&self.path) == self.file {
            // The kubelet may have emptied its folder. A leftover is replaced at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Distinguishes a file from its replacement. The inode alone does not: it is reused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

/// The identity of the file at the path. `None`: there is none.
fn identity(path: &Path) -> Option<FileIdentity> {
    let found = fs::symlink_metadata(path).ok()?;
    let changed = (found.ctime(), found.ctime_nsec());
    Some(FileIdentity { device: found.dev(), inode: found.ino(), changed })
}

impl ResourceRegistration {
    pub(super) fn new(
        settings: DevicePluginSettings,
        pool: String,
        pools: watch::Receiver<Vec<VfPool>>,
        vfs: Arc<Vfs>,
    ) -> Self {
        Self { settings, pool, pools, vfs }
    }

    /// Keeps the resource registered, forever. Each obstacle is logged once and waited out.
    pub(super) async fn keep(self) {
        let mut logged = None;
        loop {
            let obstacle = match self.listen() {
                Ok(listener) => self.hold(listener, &mut logged).await.err(),
                Err(obstacle) => Some(obstacle),
            };
            if let Some(obstacle) = obstacle {
                self.log_once(&mut logged, obstacle);
                sleep(LOOK).await;
            }
        }
    }

    fn log_once(&self, logged: &mut Option<String>, obstacle: String) {
        if logged.as_ref() != Some(&obstacle) {
            tracing::warn!(
                resource = self.resource(),
                reason = obstacle,
                "the resource is not registered with the kubelet"
            );
            *logged = Some(obstacle);
        }
    }

    fn resource(&self) -> String {
        self.settings.resource(&self.pool)
    }

    fn own_path(&self) -> PathBuf {
        self.settings.folder.join(self.settings.socket(&self.pool))
    }

    fn kubelet_path(&self) -> PathBuf {
        self.settings.folder.join("kubelet.sock")
    }

    /// Listens for the kubelet once its folder and socket exist.
    pub(super) fn listen(&self) -> Result<UnixListener, String> {
        let folder = &self.settings.folder;
        if !folder.is_dir() {
            return Err(format!(
                "there is no folder {}: start the kubelet, or correct `device_plugin.folder`",
                folder.display()
            ));
        }
        let kubelet = self.kubelet_path();
        if identity(&kubelet).is_none() {
            return Err(format!("the kubelet does not listen at {} yet", kubelet.display()));
        }
        let own = self.own_path();
        let cannot = |error: io::Error| format!("cannot listen at {}: {error}", own.display());
        // The socket of a killed agent would make the bind fail.
        match fs::remove_file(&own) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            _ => {}
        }
        private_socket(&own).and_then(UnixListener::from_std).map_err(cannot)
    }

    /// Registers the resource and serves it until the kubelet restarts.
    async fn hold(
        &self,
        listener: UnixListener,
        logged: &mut Option<String>,
    ) -> Result<(), String> {
        let sockets = self.look();
        let _socket = OwnSocket { path: self.own_path(), file: sockets.own };
        let attention = Arc::new(Attention::default());
        let (pool, pools) = (self.pool.clone(), self.pools.clone());
        let (vfs, shared) = (Arc::clone(&self.vfs), Arc::clone(&attention));
        let plugin = Plugin::new(self.settings.clone(), pool, pools, vfs, shared);
        let connections = UnixListenerStream::new(listener);
        let connections = connections.map(|accepted| {
            let (served, relay) = with_valid_authority(accepted?);
            tokio::spawn(relay);
            Ok::<_, io::Error>(served)
        });
        // Serve before registering: the kubelet calls back during the registration call.
        let server = Server::builder()
            .add_service(DevicePluginServer::new(plugin))
            .serve_with_incoming(connections);
        let registration = async {
            loop {
                self.register().await?;
                self.until_asked(&attention.asked).await?;
                tracing::info!(
                    resource = self.resource(),
                    "the resource is registered with the kubelet"
                );
                *logged = None;
                tokio::select! {
                    () = self.until_replaced(&sockets) => return Ok(()),
                    () = attention.lost.notified() => {
                        self.log_once(logged, "the kubelet stopped watching the resource".into());
                    }
                }
                sleep(LOOK).await;
            }
        };
        tokio::select! {
            ended = server => Err(format!(
                "its socket is no longer served: {}",
                ended.err().map_or_else(|| "it ended".into(), |error| error.to_string())
            )),
            held = registration => held,
        }
    }

    /// Waits until the kubelet watches. A busy kubelet, or one that could not call back, does not retry by itself.
    async fn until_asked(&self, asked: &Notify) -> Result<(), String> {
        let limit = self.settings.answer() * ANSWERS_UNTIL_ASKED;
        timeout(limit, asked.notified()).await.map_err(|_| {
            format!(
                "the kubelet at {} registered it, but did not ask for its VFs within {limit:?}",
                self.kubelet_path().display()
            )
        })
    }

    fn look(&self) -> RegisteredSockets {
        RegisteredSockets {
            own: identity(&self.own_path()),
            kubelet: identity(&self.kubelet_path()),
        }
    }

    /// Waits until one of the sockets is replaced or gone: the kubelet empties its folder when it starts.
    async fn until_replaced(&self, sockets: &RegisteredSockets) {
        while self.look() == *sockets {
            sleep(LOOK).await;
        }
    }

    pub(super) async fn register(&self) -> Result<(), String> {
        let path = self.kubelet_path();
        let failed = |why: String| format!("the kubelet at {} {why}", path.display());
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()))
            .map_err(|error| failed(format!("can't be called: {error}")))?;
        let request = RegisterRequest {
            version: VERSION.into(),
            endpoint: self.settings.socket(&self.pool),
            resource_name: self.resource(),
            options: Some(OPTIONS),
        };
        let call = async {
            let channel = endpoint.connect().await.map_err(|error| {
                failed(format!("can't be reached: {}", bootstrap::Chain(&error)))
            })?;
            let answer = RegistrationClient::new(channel).register(request).await;
            answer.map_err(|refusal| {
                failed(format!("refuses version {VERSION} of it: {}", refusal.message()))
            })
        };
        let answer = timeout(self.settings.answer(), call).await;
        answer.map_err(|_| {
            failed(format!("did not answer within {} ms", self.settings.answer_ms))
        })??;
        Ok(())
    }
}
