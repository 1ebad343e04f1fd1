//! What a pod asks for. Sources in ascending priority: the configuration, `CNI_ARGS`, `args.cni`, the pod's
//! annotations, `runtimeConfig`. An annotation that contradicts `runtimeConfig` is refused.

use model::{Bandwidth, InterfaceRequest, IpFamilies};
use netlink::MacAddress;
use offload_proto::{form, v1::Pod};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use vf_alloc::Device;

use super::{
    annotations::{self, Annotation, Requested},
    config::Configuration,
    environment::{Environment, quoted, shown},
    error::{CniError, code, invalid},
    foreign::unsupported,
    go_json::{self, GoJsonError, is_zero, named},
    port_mappings::port_mappings,
    result::Dns,
};

/// What a pod asks for. Only the form is checked; the DPU decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// The pod.
    pub pod: Pod,
    /// What the pod asks of the DPU for its interface.
    pub interface: InterfaceRequest,
    /// The path of the device-info file to write.
    pub device_info_file: Option<String>,
    /// Resolver settings that replace the network's.
    pub dns: Option<Dns>,
}

/// The `bandwidth` capability.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct BandwidthCapability {
    ingress_rate: u64,
    ingress_burst: u64,
    egress_rate: u64,
    egress_burst: u64,
}

impl From<BandwidthCapability> for Bandwidth {
    fn from(limits: BandwidthCapability) -> Self {
        let BandwidthCapability { ingress_rate, ingress_burst, egress_rate, egress_burst } = limits;
        Self { ingress_rate, ingress_burst, egress_rate, egress_burst, ..Self::default() }
    }
}

/// The `dns` capability.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DnsCapability {
    servers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
}

impl From<DnsCapability> for Dns {
    fn from(DnsCapability { servers, searches, options }: DnsCapability) -> Self {
        Self { nameservers: servers, search: searches, options, ..Self::default() }
    }
}

/// The keys of `runtimeConfig` that the plugin knows.
const CAPABILITIES: [&str; 9] = [
    "mac",
    "ips",
    "deviceID",
    "bandwidth",
    "CNIDeviceInfoFile",
    "dns",
    "portMappings",
    annotations::CAPABILITY,
    "cgroupPath",
];

impl PodRequest {
    /// Gathers the requests from all sources.
    ///
    /// # Errors
    /// [`code::UNSUPPORTED_FIELD`] for a request that the plugin cannot serve. [`code::INVALID_CONFIGURATION`] or
    /// [`code::INVALID_ENVIRONMENT`] for a malformed one. The message names key and value.
    pub fn gather(
        environment: &Environment,
        configuration: &Configuration,
    ) -> Result<Self, CniError> {
        environment.check_args()?;
        if let Some(foreign) = &configuration.foreign_key {
            return Err(foreign.refusal(&configuration.network()));
        }
        // The order of these calls is the sources' priority: a later one overwrites an earlier one.
        let network = configuration.network();
        let interface = InterfaceRequest { network, ..InterfaceRequest::default() };
        let mut pod_request = Self { pod: pod(environment), interface, ..Self::default() };
        pod_request.take_device(configuration)?;
        pod_request.take_mac("mac", configuration.mac.as_deref())?;
        pod_request.take_addresses("ips", configuration.ips.as_deref())?;
        pod_request.take_families("ipFamilies", configuration.ip_families.as_deref())?;
        pod_request.take_environment(environment)?;
        pod_request.take_mac("args.cni.mac", configuration.args.cni.mac.as_deref())?;
        pod_request.take_addresses("args.cni.ips", configuration.args.cni.ips.as_deref())?;
        let families = configuration.args.cni.ip_families.as_deref();
        pod_request.take_families("args.cni.ipFamilies", families)?;
        let sources = configuration.args.cni.allowed_sources.as_deref().unwrap_or_default();
        pod_request.take_sources("args.cni.allowedSources", sources)?;
        let by_runtime = named(configuration.runtime_config.clone(), &CAPABILITIES);
        for (key, value) in &by_runtime {
            pod_request.take_capability(&format!("runtimeConfig.{key}"), key, value)?;
        }
        pod_request.take_annotations(&by_runtime)?;
        Ok(pod_request)
    }

    fn take_device(&mut self, configuration: &Configuration) -> Result<(), CniError> {
        let (id, bus_id) = (&configuration.device_id, &configuration.pci_bus_id);
        if let (Some(id), Some(bus_id)) = (id, bus_id)
            && !id.is_empty()
            && !bus_id.is_empty()
            && id != bus_id
        {
            let (id, bus_id) = (quoted(id), quoted(bus_id));
            let message = format!("deviceID {id} and pciBusID {bus_id} name different devices");
            return Err(invalid(message));
        }
        self.take_named_device("pciBusID", bus_id.as_deref())?;
        self.take_named_device("deviceID", id.as_deref())
    }

    fn take_environment(&mut self, environment: &Environment) -> Result<(), CniError> {
        let of_environment =
            |error: CniError| CniError { code: code::INVALID_ENVIRONMENT, ..error };
        self.take_mac("CNI_ARGS MAC", environment.arg("MAC")).map_err(of_environment)?;
        let addresses: Option<Vec<_>> =
            environment.arg("IP").map(|ips| ips.split(',').map(str::to_owned).collect());
        self.take_addresses("CNI_ARGS IP", addresses.as_deref()).map_err(of_environment)
    }

    /// `name` is the key's name in messages.
    pub(super) fn take_capability(
        &mut self,
        name: &str,
        key: &str,
        value: &Value,
    ) -> Result<(), CniError> {
        if is_zero(value) {
            return Ok(());
        }
        match key {
            "mac" => self.take_mac(name, Some(&decode::<String>(name, value)?))?,
            "ips" => self.take_addresses(name, Some(&decode::<Vec<String>>(name, value)?))?,
            "deviceID" => self.take_named_device(name, Some(&decode::<String>(name, value)?))?,
            "bandwidth" => {
                self.interface.bandwidth = decode::<BandwidthCapability>(name, value)?.into();
            }
            "CNIDeviceInfoFile" => self.take_device_info_file(name, value)?,
            "dns" => {
                let dns: Dns = decode::<DnsCapability>(name, value)?.into();
                self.dns = (!dns.is_empty()).then_some(dns);
            }
            "portMappings" => {
                let entries: Vec<_> = decode(name, value)?;
                self.interface.port_mappings = port_mappings(name, &entries)?;
            }
            // Annotations are read after all capabilities. `cgroupPath` asks for nothing: it names the cgroup of the
            // pod's processes.
            annotations::CAPABILITY | "cgroupPath" => {}
            _ => return Err(unsupported(name, value)),
        }
        Ok(())
    }

    fn take_annotations(&mut self, by_runtime: &Map<String, Value>) -> Result<(), CniError> {
        let Some(value) = by_runtime.get(annotations::CAPABILITY).filter(|value| !value.is_null())
        else {
            return Ok(());
        };
        for Annotation { title, requested } in annotations::read(value)? {
            match requested {
                Requested::Network(name) => {
                    annotations::check_network(&title, &name)?;
                    self.interface.network = name;
                }
                Requested::AllowedSources(sources) => self.take_sources(&title, &sources)?,
                Requested::IpFamilies(families) => self.take_families(&title, Some(&families))?,
                Requested::Capability(key, value) => {
                    self.take_capability(&title, key, &value)?;
                    check_agreement(&title, key, &value, by_runtime)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn take_mac(&mut self, key: &str, value: Option<&str>) -> Result<(), CniError> {
        let Some(text) = value.filter(|text| !text.is_empty()) else { return Ok(()) };
        let mac: MacAddress = text.parse().map_err(|error| invalid(format!("{key}: {error}")))?;
        if !mac.is_unicast() {
            return Err(invalid(format!("{key} {mac} is not a unicast address")));
        }
        self.interface.mac = Some(mac);
        Ok(())
    }

    pub(super) fn take_addresses(
        &mut self,
        key: &str,
        value: Option<&[String]>,
    ) -> Result<(), CniError> {
        let Some(addresses) = value.filter(|addresses| !addresses.is_empty()) else {
            return Ok(());
        };
        let read = |text: &String| {
            text.parse()
                .map_err(|_| invalid(format!("{key} {} is not an IP address", quoted(text))))
        };
        self.interface.addresses = addresses.iter().map(read).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// An empty list asks for no address.
    pub(super) fn take_families(
        &mut self,
        key: &str,
        value: Option<&[String]>,
    ) -> Result<(), CniError> {
        let Some(names) = value else { return Ok(()) };
        let mut families = IpFamilies { ipv4: false, ipv6: false };
        for name in names {
            match name.as_str() {
                "IPv4" => families.ipv4 = true,
                "IPv6" => families.ipv6 = true,
                other => {
                    let other = quoted(other);
                    let message = format!("{key} {other} is no IP family: write IPv4 or IPv6");
                    return Err(invalid(message));
                }
            }
        }
        self.interface.families = Some(families);
        Ok(())
    }

    pub(super) fn take_sources(&mut self, key: &str, sources: &[String]) -> Result<(), CniError> {
        let read = |text: &String| {
            text.parse().map_err(|_| {
                invalid(format!(
                    "{key} {} is neither a MAC address nor an IP address",
                    quoted(text)
                ))
            })
        };
        self.interface.allowed_sources = sources.iter().map(read).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn take_named_device(&mut self, key: &str, value: Option<&str>) -> Result<(), CniError> {
        let Some(text) = value.filter(|text| !text.is_empty()) else { return Ok(()) };
        let device = full_device(text).ok_or_else(|| no_device(key, text))?;
        self.interface.device = Some(device);
        Ok(())
    }

    fn take_device_info_file(&mut self, key: &str, value: &Value) -> Result<(), CniError> {
        let path: String = decode(key, value)?;
        let is_plain = path.starts_with('/') && !path.split('/').any(|part| part == "..");
        if !is_plain {
            return Err(invalid(format!("{key} {} is not an absolute path", quoted(&path))));
        }
        self.device_info_file = Some(path);
        Ok(())
    }
}

fn pod(environment: &Environment) -> Pod {
    let arg = |key| environment.arg(key).unwrap_or_default().to_owned();
    Pod { namespace: arg("K8S_POD_NAMESPACE"), name: arg("K8S_POD_NAME"), uid: arg("K8S_POD_UID") }
}

/// Refuses an annotation that differs from the runtime's request for the same capability.
fn check_agreement(
    title: &str,
    key: &str,
    value: &Value,
    by_runtime: &Map<String, Value>,
) -> Result<(), CniError> {
    let requested_by = |value| {
        let mut pod_request = PodRequest::default();
        pod_request.take_capability(title, key, value).map(|()| pod_request)
    };
    match by_runtime.get(key).filter(|value| !is_zero(value)) {
        Some(other) if requested_by(value)? != requested_by(other)? => {
            Err(annotations::contradiction(title, key, other))
        }
        _ => Ok(()),
    }
}

/// The full PCI address in lower case, such as `0000:03:00.2`. The text may omit the domain.
fn full_device(text: &str) -> Option<Device> {
    let in_full = match text.matches(':').count() {
        1 => form::device(&format!("0000:{text}")),
        _ => form::device(text),
    };
    in_full.map(Device::from)
}

/// VFs also have names such as `pf0vf3`, but runtimes and device plugins pass PCI addresses.
fn no_device(key: &str, text: &str) -> CniError {
    let message = format!("{key} {} is no PCI address", quoted(text));
    CniError::new(code::UNSUPPORTED_FIELD, message).with_details(
        "UNSUPPORTED: name the VF by its PCI address, such as 0000:03:00.2, which `dpuctl get vfs` \
         lists, or leave it out",
    )
}

/// Decodes the value of a key; `key` is its name in messages.
pub(super) fn decode<T: DeserializeOwned>(key: &str, value: &Value) -> Result<T, CniError> {
    go_json::read(value.clone()).map_err(|error| match error {
        GoJsonError::UnknownKey { key: unknown, known } => {
            let known = known.join(", ");
            unsupported(&format!("{key}.{unknown}"), value)
                .with_details(format!("UNSUPPORTED: leave it out: {key} has the keys {known}"))
        }
        malformed @ GoJsonError::Malformed { .. } => {
            invalid(format!("{key} {} is malformed: {malformed}", shown(value)))
        }
    })
}

#[cfg(test)]
mod tests;
