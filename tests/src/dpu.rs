//! A DPU in a namespace of this machine: where its service starts.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    FabricKind, Netns, OpenVswitch, Pki, Program, Settings, faults,
    settings::{CardPosition, vswitch_link},
};

/// Name of the service's program.
const SERVICE: &str = "dpu-service";
/// Name of its configuration file.
const CONFIGURATION: &str = "dpu-service.toml";

/// A DPU with its service.
#[derive(Debug)]
pub struct Dpu {
    /// The service.
    pub service: Program,
    /// The DPU's namespace.
    pub netns: Arc<Netns>,
    folder: PathBuf,
    settings: Settings,
    positions: Vec<CardPosition>,
    pki: Arc<Pki>,
    /// The DPU's Open vSwitch. Declared after the service, so that it ends later.
    pub(crate) vswitch: Option<OpenVswitch>,
}

impl Dpu {
    /// [Prepares](prepare) the service of a DPU with these cards in a folder, and starts it.
    pub(crate) fn start_in(
        folder: PathBuf,
        netns: Arc<Netns>,
        settings: Settings,
        positions: Vec<CardPosition>,
        pki: Arc<Pki>,
    ) -> Self {
        prepare(&folder, &settings, &positions, &pki);
        let vswitch = start_vswitch(&netns, &settings, &folder);
        let service = start_service(&netns, &folder);
        Self { service, netns, folder, settings, positions, pki, vswitch }
    }

    /// Rewrites the service's configuration file atomically.
    pub(crate) fn configure(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
        let text = self.settings.service_file_of(&self.positions, &self.folder, &self.pki);
        let (file, new) = (self.folder.join(CONFIGURATION), self.folder.join("new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, file).unwrap();
    }

    /// Starts the service again after it ended.
    pub fn start(&mut self) {
        self.service = start_service(&self.netns, &self.folder);
    }

    /// Folder of the service's configuration, log and state.
    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }
}

/// Prepares a folder with everything that the service of a DPU with these cards needs.
pub(crate) fn prepare(folder: &Path, settings: &Settings, positions: &[CardPosition], pki: &Pki) {
    for position in positions {
        pki.issue_once("dpu", position.dpu);
    }
    fs::write(folder.join(CONFIGURATION), settings.service_file_of(positions, folder, pki))
        .unwrap();
    faults::prepare(folder, SERVICE);
    if let Some(slow) = &settings.slow {
        slow.install(folder);
    }
}

/// Starts Open vSwitch, if it is the fabric, where the service of this folder expects it.
pub(crate) fn start_vswitch(
    netns: &Netns,
    settings: &Settings,
    folder: &Path,
) -> Option<OpenVswitch> {
    if settings.fabric_kind() != Some(FabricKind::OpenVswitch) {
        return None;
    }
    let vswitch = OpenVswitch::start_in(&netns.path());
    let sockets = vswitch.socket().parent().expect("a folder").to_owned();
    std::os::unix::fs::symlink(sockets, vswitch_link(folder)).unwrap();
    Some(vswitch)
}

/// Starts the service that was prepared in a folder.
pub(crate) fn start_service(netns: &Netns, folder: &Path) -> Program {
    let configuration = folder.join(CONFIGURATION);
    let arguments = ["--config".as_ref(), configuration.as_os_str()];
    let faults = faults::folder(folder, SERVICE);
    Program::start(SERVICE, netns, folder, arguments, &[("OFFLOAD_FAULTS", &faults)])
}
