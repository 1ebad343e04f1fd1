//! The plugins of delegated interfaces, called as a chain.

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    time::Instant,
};

use nix::sys::memfd::{MFdFlags, memfd_create};
use offload_proto::{Failure, v1::FurtherLease};
use serde_json::{Map, Value, json};

use super::{
    catalogue::{Chain, program},
    failed, lease,
    plugin::{self, Surroundings},
    record::Delegated,
    settings::DelegateSettings,
    versions::{self, Known},
    wishes::has_capability,
};
use crate::cni::{go_json, ipam, version::Version};

/// Where plugins are, how long they may take, and what they have said of themselves.
#[derive(Debug)]
pub(super) struct Plugins {
    settings: DelegateSettings,
    known: Known,
}

impl Plugins {
    pub(super) fn new(settings: DelegateSettings) -> Self {
        Self { settings, known: Known::default() }
    }

    /// When a call that begins now has to have ended.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.settings.call()
    }

    /// Calls the plugins one after the other, each with what the one before has answered.
    pub(super) async fn make(
        &self,
        delegated: &Delegated,
        calls: &File,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let call = self.call_for(delegated, calls, deadline);
        let mut previous = None;
        for configuration in &delegated.chain.plugins {
            let document = document(delegated, configuration, previous.as_ref());
            let answer = self.call(&call, "ADD", &document).await?;
            previous = Some(answer.ok_or_else(|| {
                failed(
                    &delegated.chain,
                    &format!("plugin {} answered nothing", program(configuration)),
                )
            })?);
        }
        previous.ok_or_else(|| failed(&delegated.chain, "it has no plugins"))
    }

    /// Has all plugins look at what they have made.
    pub(super) async fn check(&self, delegated: &Delegated, calls: &File) -> Result<(), Failure> {
        let call = self.call_for(delegated, calls, self.deadline());
        for configuration in &delegated.chain.plugins {
            let document = document(delegated, configuration, delegated.result.as_ref());
            self.call(&call, "CHECK", &document).await?;
        }
        Ok(())
    }

    /// Calls all plugins, the last one first, whatever becomes of the others.
    pub(super) async fn take_back(
        &self,
        delegated: &Delegated,
        calls: &File,
    ) -> Result<(), Failure> {
        let mut taken_back = Ok(());
        for configuration in delegated.chain.plugins.iter().rev() {
            let call = self.call_for(delegated, calls, self.deadline());
            let document = document(delegated, configuration, delegated.result.as_ref());
            let called = self.call(&call, "DEL", &document).await;
            taken_back = taken_back.and(called.map(drop));
        }
        taken_back
    }

    /// Why the plugins of a chain can't serve, as far as they can be asked. `None`: they can.
    pub(super) async fn trouble(&self, chain: &Chain, deadline: Instant) -> Option<Failure> {
        self.ask_all(chain, deadline.min(self.deadline())).await.err()
    }

    async fn ask_all(&self, chain: &Chain, deadline: Instant) -> Result<(), Failure> {
        let calls = memfd_create(c"status", MFdFlags::MFD_CLOEXEC).map(File::from);
        let calls = calls.map_err(|errno| failed(chain, errno.desc()))?;
        let folders = self.folders(chain, ":");
        let surroundings = Surroundings { folders, ..Surroundings::default() };
        let call = Call { chain, surroundings, calls: &calls, deadline };
        let version = self.common_version(&call).await?;
        if Version::parse(version) < Some(Version::V1_1_0) {
            return Ok(());
        }
        for configuration in &chain.plugins {
            let configuration = lease::told(configuration.clone(), &FurtherLease::default());
            let document = named(configuration, chain, version).into();
            self.call(&call, "STATUS", &document).await?;
        }
        Ok(())
    }

    async fn call(
        &self,
        call: &Call<'_>,
        verb: &str,
        document: &Value,
    ) -> Result<Option<Value>, Failure> {
        let name = document.as_object().map(program).unwrap_or_default();
        let program = self.program(call.chain, name)?;
        call.of(&program, verb, document).await
    }

    fn program(&self, chain: &Chain, name: &str) -> Result<PathBuf, Failure> {
        plugin::find(self.folders_for(chain), name).ok_or_else(|| {
            let folders = self.folders(chain, ", ");
            failed(chain, &format!("there is no plugin {name} in {folders}"))
        })
    }

    /// The caller's, and then those of the configuration.
    fn folders_for<'a>(&'a self, chain: &'a Chain) -> impl Iterator<Item = &'a PathBuf> {
        let own = self.settings.plugins.iter();
        chain.folders.iter().chain(own.filter(move |folder| !chain.folders.contains(folder)))
    }

    fn folders(&self, chain: &Chain, separator: &str) -> String {
        let folders = self.folders_for(chain).map(|folder| folder.display().to_string());
        folders.collect::<Vec<_>>().join(separator)
    }

    fn call_for<'a>(
        &self,
        delegated: &'a Delegated,
        calls: &'a File,
        deadline: Instant,
    ) -> Call<'a> {
        // Of a namespace that has ended, another may be at the same path by now.
        let living = delegated.netns.living().map(|_| delegated.netns.path.clone());
        let surroundings = Surroundings {
            container_id: delegated.key.container_id.clone(),
            netns: living.unwrap_or_default(),
            interface_name: delegated.key.interface_name.clone(),
            arguments: delegated.arguments.clone(),
            folders: self.folders(&delegated.chain, ":"),
        };
        Call { chain: &delegated.chain, surroundings, calls, deadline }
    }

    /// The version in which an interface's plugins are spoken to.
    pub(super) async fn version_for(
        &self,
        delegated: &Delegated,
        calls: &File,
        deadline: Instant,
    ) -> Result<&'static str, Failure> {
        self.common_version(&self.call_for(delegated, calls, deadline)).await
    }

    /// Asks the plugins which versions they speak, of which each program is asked once.
    async fn common_version(&self, call: &Call<'_>) -> Result<&'static str, Failure> {
        let chain = call.chain;
        let plugins: BTreeSet<_> = chain.plugins.iter().map(program).collect();
        if chain.leased_network().is_some() {
            // Its plugins are about to look for it.
            self.program(chain, ipam::PROGRAM)?;
        }
        let mut spoken = Vec::new();
        for name in &plugins {
            let program = self.program(chain, name)?;
            spoken.push(match self.known.of(&program) {
                Some(versions) => versions,
                None => self.ask_versions(call, &program).await?,
            });
        }
        let declared = &chain.versions;
        let version = versions::common(declared, &spoken).ok_or_else(|| {
            let names = plugins.into_iter().collect::<Vec<_>>().join(", ");
            let declared = declared.join(", ");
            failed(chain, &format!(
                "there is no version of the CNI specification up to its `cniVersion` {declared} \
                 that {names} and this agent ({}) all speak", Version::list()
            ))
        })?;
        Ok(version.as_str())
    }

    async fn ask_versions(&self, call: &Call<'_>, program: &Path) -> Result<Vec<Version>, Failure> {
        let document = json!({ "cniVersion": Version::NEWEST.as_str() });
        let answer = call.of(program, "VERSION", &document).await?;
        let versions = versions::supported(answer.as_ref());
        self.known.learn(program, versions.clone());
        Ok(versions)
    }
}

/// What the calls of a chain's plugins have in common.
struct Call<'a> {
    chain: &'a Chain,
    surroundings: Surroundings,
    /// The file that they read.
    calls: &'a File,
    deadline: Instant,
}

impl Call<'_> {
    async fn of(
        &self,
        program: &Path,
        verb: &str,
        document: &Value,
    ) -> Result<Option<Value>, Failure> {
        let Self { chain, surroundings, calls, deadline } = self;
        let called = plugin::call(program, verb, surroundings, document, calls, *deadline).await;
        called.map_err(|trouble| {
            failed(chain, &format!("{verb} of {}: {trouble}", program.display()))
        })
    }
}

/// A plugin's configuration as one of its network's, in a version of the specification.
fn named(
    mut configuration: Map<String, Value>,
    chain: &Chain,
    version: &str,
) -> Map<String, Value> {
    go_json::set(&mut configuration, "name", chain.network.clone().into());
    go_json::set(&mut configuration, "cniVersion", version.into());
    configuration
}

/// What a plugin reads.
fn document(
    delegated: &Delegated,
    configuration: &Map<String, Value>,
    previous: Option<&Value>,
) -> Value {
    let mut plugin = configuration.clone();
    if let Some(lease) = &delegated.lease {
        plugin = lease::told(plugin, lease);
        if delegated.chain.uses_network_mtu {
            go_json::set(&mut plugin, "mtu", lease.mtu.into());
        }
    }
    let mut document = named(plugin, &delegated.chain, &delegated.version);
    let wishes = delegated.wishes.iter().filter(|(wish, _)| has_capability(configuration, wish));
    let wishes: Map<_, _> = wishes.map(|(wish, value)| (wish.clone(), value.clone())).collect();
    if !wishes.is_empty() {
        go_json::set(&mut document, "runtimeConfig", wishes.into());
    }
    if let Some(previous) = previous {
        go_json::set(&mut document, "prevResult", previous.clone());
    }
    document.into()
}
