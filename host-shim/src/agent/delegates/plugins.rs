//! The plugins of delegated interfaces, called as a chain.

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    time::Instant,
};

use offload_proto::Failure;
use serde_json::{Map, Value, json};

use super::{
    failed,
    plugin::{self, Surroundings},
    record::Delegated,
    settings::DelegateSettings,
    versions::{self, Known},
    wishes::has_capability,
};
use crate::cni::version::Version;

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

    /// Has all plugins look at what they have made.
    pub(super) async fn check(&self, delegated: &Delegated, calls: &File) -> Result<(), Failure> {
        let deadline = self.deadline();
        for configuration in &delegated.chain.plugins {
            let document = document(delegated, configuration, delegated.result.as_ref());
            self.call(delegated, "CHECK", &document, calls, deadline).await?;
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
            let deadline = self.deadline();
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
    pub(super) async fn common_version(
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
