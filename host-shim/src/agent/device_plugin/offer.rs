//! One pool's resource, kept on offer to the kubelet: a socket of ours in its folder, and a word to its own.

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

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
    files::{FileIdentity, identity},
    plugin::{Attention, OPTIONS, Plugin},
    settings::DevicePluginSettings,
};
use crate::agent::{authority::with_valid_authority, vfs::Vfs};

/// The version of the kubelet's interface that is spoken.
const VERSION: &str = "v1beta1";
/// How often it is looked whether the kubelet has begun anew.
const LOOK: Duration = Duration::from_secs(1);
/// How many answers' time a kubelet that has registered a resource has to ask for its VFs: it calls back, and asks for
/// something else before.
const ANSWERS_UNTIL_ASKED: u32 = 5;

/// A pool's resource.
pub(super) struct Offer {
    settings: DevicePluginSettings,
    pool: String,
    pools: watch::Receiver<Vec<VfPool>>,
    vfs: Arc<Vfs>,
}

/// The two sockets as they were when the resource was offered.
struct Offered {
    own: Option<FileIdentity>,
    kubelet: Option<FileIdentity>,
}

/// Our socket in the kubelet's folder, which goes when the offer ends: the kubelet takes what stays there for a plugin
/// that is yet to come. One that has taken its place is another agent's, and stays.
struct OwnSocket {
    path: PathBuf,
    file: Option<FileIdentity>,
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        if self.file.is_some() && identity(&self.path) == self.file {
            // The kubelet may have emptied its folder just now; and what stays is replaced at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Offer {
    pub(super) fn new(
        settings: DevicePluginSettings,
        pool: String,
        pools: watch::Receiver<Vec<VfPool>>,
        vfs: Arc<Vfs>,
    ) -> Self {
        Self { settings, pool, pools, vfs }
    }

    /// Keeps it on offer, for ever. What hinders that is told once, and waited for.
    pub(super) async fn keep(self) {
        let mut told = None;
        loop {
            let hindrance = match self.listen() {
                Ok(listener) => self.hold(listener, &mut told).await.err(),
                Err(hindrance) => Some(hindrance),
            };
            if let Some(hindrance) = hindrance {
                self.tell(&mut told, hindrance);
                sleep(LOOK).await;
            }
        }
    }

    fn tell(&self, told: &mut Option<String>, hindrance: String) {
        if told.as_ref() != Some(&hindrance) {
            tracing::warn!(resource = self.resource(), "not offered to the kubelet: {hindrance}");
            *told = Some(hindrance);
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

    /// Listens for the kubelet, once its folder and socket are there.
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
        let cannot = |error: io::Error| format!("can't listen at {}: {error}", own.display());
        match fs::remove_file(&own) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            _ => {}
        }
        private_socket(&own).and_then(UnixListener::from_std).map_err(cannot)
    }

    /// Offers the resource and serves it until the kubelet begins anew.
    async fn hold(&self, listener: UnixListener, told: &mut Option<String>) -> Result<(), String> {
        let offered = self.look();
        let _socket = OwnSocket { path: self.own_path(), file: offered.own };
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
        // The kubelet calls back while it is being spoken to.
        let server = Server::builder()
            .add_service(DevicePluginServer::new(plugin))
            .serve_with_incoming(connections);
        let company = async {
            loop {
                self.register().await?;
                self.until_asked(&attention.asked).await?;
                tracing::info!(resource = self.resource(), "offered to the kubelet");
                *told = None;
                tokio::select! {
                    () = self.until_anew(&offered) => return Ok(()),
                    () = attention.lost.notified() => {
                        self.tell(told, "the kubelet listens no more".into());
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
            held = company => held,
        }
    }

    /// A kubelet that was busy, or could not call back, does not do it later unasked.
    async fn until_asked(&self, asked: &Notify) -> Result<(), String> {
        let patience = self.settings.answer() * ANSWERS_UNTIL_ASKED;
        timeout(patience, asked.notified()).await.map_err(|_| {
            format!(
                "the kubelet at {} has registered it, but has not asked for its VFs within {patience:?}",
                self.kubelet_path().display()
            )
        })
    }

    fn look(&self) -> Offered {
        Offered { own: identity(&self.own_path()), kubelet: identity(&self.kubelet_path()) }
    }

    /// Until either socket is not the one that it was: the kubelet empties its folder when it starts.
    async fn until_anew(&self, offered: &Offered) {
        loop {
            sleep(LOOK).await;
            let now = self.look();
            if now.own != offered.own || now.kubelet != offered.kubelet {
                return;
            }
        }
    }

    pub(super) async fn register(&self) -> Result<(), String> {
        let path = self.kubelet_path();
        let unheard = |why: String| format!("the kubelet at {} {why}", path.display());
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()))
            .map_err(|error| unheard(format!("can't be called: {error}")))?;
        let request = RegisterRequest {
            version: VERSION.into(),
            endpoint: self.settings.socket(&self.pool),
            resource_name: self.resource(),
            options: Some(OPTIONS),
        };
        let call = async {
            let channel = endpoint.connect().await.map_err(|error| {
                unheard(format!("can't be reached: {}", bootstrap::Chain(&error)))
            })?;
            let answer = RegistrationClient::new(channel).register(request).await;
            answer.map_err(|refusal| {
                unheard(format!("refuses version {VERSION} of it: {}", refusal.message()))
            })
        };
        let answer = timeout(self.settings.answer(), call).await;
        answer.map_err(|_| {
            unheard(format!("did not answer within {} ms", self.settings.answer_ms))
        })??;
        Ok(())
    }
}
