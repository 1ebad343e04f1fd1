//! The manifests of `configs/kubernetes` are consistent and match the programs.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{Call, Lab, Netns, Pki, Settings, program, run};
use mtls::{Identity, Role};
use serde::Deserialize;
use serde_json::{Value, json};

const BASES: [&str; 5] = ["host", "dpu", "cert-manager", "networks", "admission"];
const IMAGES: &str = include_str!("../../../hack/package.d/image.sh");
const WORKSPACE: &str = include_str!("../../../Cargo.toml");

pub(crate) fn base(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/kubernetes").join(name)
}

/// All documents of a YAML file.
pub(crate) fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let documents = serde_norway::Deserializer::from_str(&text);
    documents
        .map(|document| Value::deserialize(document).unwrap_or_else(|e| panic!("{path:?}: {e}")))
        .collect()
}

fn the_one(path: &Path) -> Value {
    let mut documents = documents(path);
    assert_eq!(documents.len(), 1, "{}", path.display());
    documents.remove(0)
}

fn list<'a>(value: &'a Value, key: &str) -> Vec<&'a Value> {
    value[key].as_array().into_iter().flatten().collect()
}

fn texts(value: &Value, key: &str) -> Vec<String> {
    list(value, key).into_iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn daemon_set(of: &str) -> Value {
    the_one(&base(of).join("daemonset.yaml"))
}

fn pod(of: &str) -> Value {
    daemon_set(of)["spec"]["template"]["spec"].clone()
}

fn containers(pod: &Value) -> Vec<&Value> {
    let mut all = list(pod, "initContainers");
    all.extend(list(pod, "containers"));
    all
}

#[test]
fn kustomization_lists_its_folder() {
    for name in BASES {
        let folder = base(name);
        let kustomization = the_one(&folder.join("kustomization.yaml"));
        let mut named: BTreeSet<_> = texts(&kustomization, "resources").into_iter().collect();
        for generator in list(&kustomization, "configMapGenerator") {
            named.extend(texts(generator, "files"));
        }
        // Applied by hand to remove everything.
        named.extend(["kustomization.yaml", "uninstall.yaml"].map(str::to_owned));
        let there: BTreeSet<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(there.is_subset(&named), "{name}: {there:?}");
        let missing: Vec<_> = named.difference(&there).collect();
        assert!(missing.iter().all(|file| *file == "uninstall.yaml"), "{name}: {missing:?}");
        for file in there.iter().filter(|file| file.ends_with(".yaml")) {
            assert!(!documents(&folder.join(file)).is_empty(), "{file}");
        }
    }
}

#[test]
fn namespace_admits_agent_and_service() {
    let namespace = the_one(&base("namespace.yaml"));
    for mode in ["enforce", "warn", "audit"] {
        let label = format!("pod-security.kubernetes.io/{mode}");
        assert_eq!(namespace["metadata"]["labels"][&label], "privileged", "{label}");
    }
    for name in ["host", "dpu", "cert-manager"] {
        let kustomization = the_one(&base(name).join("kustomization.yaml"));
        assert_eq!(kustomization["namespace"], namespace["metadata"]["name"], "{name}");
    }
}

/// A copy for another DPU only replaces the name.
#[test]
fn dpu_name_is_consistent_in_manifests() {
    let kustomization = the_one(&base("dpu").join("kustomization.yaml"));
    assert_eq!(kustomization["nameSuffix"], "-dpu-1");
    assert_eq!(pod("dpu")["nodeSelector"]["kubernetes.io/hostname"], "dpu-1");
    let labels = &daemon_set("dpu")["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/instance"], "dpu-1");
}

#[test]
fn daemon_set_selects_its_own_pods() {
    for name in ["host", "dpu"] {
        let set = daemon_set(name);
        let labels = &set["spec"]["template"]["metadata"]["labels"];
        let selector = set["spec"]["selector"]["matchLabels"].as_object().unwrap();
        assert!(!selector.is_empty());
        assert!(selector.iter().all(|(key, value)| &labels[key] == value), "{name}");
    }
}

/// One DaemonSet and one configuration for all hosts, and no file of a single host.
#[test]
fn manifests_of_hosts_name_no_node() {
    for entry in fs::read_dir(base("host")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("node-1"), "{}", path.display());
    }
    let pod = pod("host");
    let env = list(&pod["containers"][0], "env");
    assert_eq!(env[0]["name"], "NODE_NAME");
    assert_eq!(env[0]["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName");
    let volumes = list(&pod, "volumes");
    assert!(volumes.iter().all(|volume| volume["secret"].is_null()), "{volumes:?}");
}

/// The kubelet then shows the last log lines of a failed program with its pod.
#[test]
fn containers_fall_back_to_their_logs() {
    for name in ["host", "dpu"] {
        let pod = pod(name);
        let shows = |it: &&Value| it["terminationMessagePolicy"] == "FallbackToLogsOnError";
        assert!(containers(&pod).iter().all(shows), "{name}");
    }
}

#[test]
fn manifests_name_this_versions_images() {
    for name in ["host", "dpu"] {
        let kustomization = the_one(&base(name).join("kustomization.yaml"));
        let images = list(&kustomization, "images");
        let [image] = images[..] else { panic!("{images:?}") };
        let name_of_image = image["name"].as_str().unwrap();
        assert!(IMAGES.contains(&format!("make_image {name_of_image} ")), "{name_of_image}");
        assert_eq!(image["newName"], format!("localhost/{name_of_image}"));
        let version = format!("\nversion = \"{}\"\n", image["newTag"].as_str().unwrap());
        assert!(WORKSPACE.contains(&version), "{version}");
        let pod = pod(name);
        assert!(containers(&pod).iter().all(|container| container["image"] == name_of_image));
    }
}

#[test]
fn mounts_and_volumes_match() {
    for name in ["host", "dpu"] {
        let pod = pod(name);
        let names = |values: Vec<&Value>| -> BTreeSet<String> {
            values.iter().map(|value| value["name"].as_str().unwrap().to_owned()).collect()
        };
        let mounts = containers(&pod).into_iter().flat_map(|it| list(it, "volumeMounts"));
        assert_eq!(names(mounts.collect()), names(list(&pod, "volumes")), "{name}");
        let generated = &the_one(&base(name).join("kustomization.yaml"))["configMapGenerator"][0];
        let configured = list(&pod, "volumes").into_iter().find(|it| it["name"] == "configuration");
        assert_eq!(configured.unwrap()["configMap"]["name"], generated["name"]);
    }
}

/// Checks the arguments of a program by adding `--help`, which makes it run nothing else.
fn is_known(program_name: &str, arguments: &[String]) {
    let output = run(Command::new(program(program_name)).args(arguments).arg("--help"));
    assert!(output.status.success(), "{program_name} {arguments:?}: {output:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    for flag in arguments.iter().filter(|argument| argument.starts_with("--")) {
        let flag = flag.split('=').next().unwrap();
        assert!(help.contains(flag), "{program_name} knows no {flag}");
    }
}

#[test]
fn manifest_arguments_are_known() {
    let patch = the_one(&base("host").join("uninstall.yaml"));
    let patched = &patch["spec"]["template"]["spec"];
    for (name, pod) in [
        ("host-shim-agent", &pod("host")),
        ("dpu-service", &pod("dpu")),
        ("host-shim-agent", patched),
    ] {
        for container in containers(pod) {
            is_known(name, &texts(container, "args"));
        }
    }
}

#[test]
fn uninstall_matches_install() {
    let places = |pod: &Value| -> BTreeSet<String> {
        let arguments = texts(&pod["initContainers"][0], "args").into_iter();
        let is_place = |it: &String| it.starts_with("--plugin-folder") || it.starts_with("--confl");
        arguments.filter(is_place).collect()
    };
    let patch = the_one(&base("host").join("uninstall.yaml"));
    let (patched, pod) = (&patch["spec"]["template"]["spec"], pod("host"));
    assert_eq!(patched["initContainers"][0]["name"], pod["initContainers"][0]["name"]);
    assert_eq!(places(patched), places(&pod));
    assert_eq!(places(patched).len(), 2);
}

/// Whether the container has this folder or file from the host or an object.
fn is_mounted(container: &Value, path: &str) -> bool {
    let mounts = list(container, "volumeMounts").into_iter();
    mounts
        .into_iter()
        .any(|mount| Path::new(path).starts_with(mount["mountPath"].as_str().unwrap()))
}

#[test]
fn manifest_pods_have_files_but_no_credentials() {
    for (name, file, tls, paths) in [
        (
            "host",
            "host-shim.toml",
            ["ca.crt", "host.crt", "host.key"],
            &[
                "/run/dpu-offload/agent.sock",
                "/run/dpu-offload/pods.lock",
                "/var/lib/dpu-offload/agent",
                "/run/netns/it",
                "/var/run/netns/it",
                "/var/lib/kubelet/device-plugins",
                "/var/lib/kubelet/pod-resources/kubelet.sock",
            ][..],
        ),
        (
            "dpu",
            "dpu-service.toml",
            ["ca.crt", "tls.crt", "tls.key"],
            &["/var/lib/dpu-offload/service"],
        ),
    ] {
        let pod = pod(name);
        assert_eq!(pod["automountServiceAccountToken"], false);
        let container = &pod["containers"][0];
        let configuration = texts(container, "args")[1].clone();
        assert!(configuration.ends_with(file) && is_mounted(container, &configuration));
        let text = fs::read_to_string(base(name).join(file)).unwrap();
        for key in tls {
            let path = format!("/etc/dpu-offload/tls/{key}");
            assert!(text.contains(&format!("\"{path}\"")) && is_mounted(container, &path));
        }
        for path in paths {
            assert!(is_mounted(container, path), "{name}: {path}");
        }
    }
}

/// For a while two agents run: without standby the second would fail.
#[test]
fn next_agent_stands_by() {
    let update = daemon_set("host")["spec"]["updateStrategy"]["rollingUpdate"].clone();
    assert_eq!(update, serde_json::json!({"maxSurge": 1, "maxUnavailable": 0}));
    assert!(texts(&pod("host")["containers"][0], "args").contains(&"--standby".to_owned()));
}

#[test]
fn agent_sees_namespaces_of_later_pods() {
    let pod = pod("host");
    let mounts = list(&pod["containers"][0], "volumeMounts");
    let of_netns: Vec<_> = mounts.iter().filter(|mount| mount["name"] == "netns").collect();
    assert_eq!(of_netns.len(), 2);
    assert!(of_netns.iter().all(|mount| mount["mountPropagation"] == "HostToContainer"));
}

#[test]
fn manifest_configurations_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let pki = Pki::make(folder.path().join("pki"));
    for (name, file, role, owner) in [
        ("host-shim-agent", "host/host-shim.toml", "host", "node-1"),
        ("dpu-service", "dpu/dpu-service.toml", "dpu", "dpu-1"),
    ] {
        let text = fs::read_to_string(base(file)).unwrap();
        let (before, rest) = text.split_once("[tls]").unwrap();
        let after = &rest[rest.find("\n[").unwrap()..];
        let copy = folder.path().join("it.toml");
        pki.issue(role, owner);
        fs::write(&copy, format!("{before}{}{after}", pki.section(role, owner))).unwrap();
        let mut command = Command::new(program(name));
        command.env("NODE_NAME", "node-1");
        let output = run(command.arg("--config").arg(&copy).arg("--check-config"));
        assert!(output.status.success(), "{file}: {output:?}");
    }
}

#[test]
fn manifest_conflist_waits_longer_for_agent() {
    let read = |path: PathBuf| -> Value {
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    };
    let shipped = read(base("..").join("10-dpu-offload.conflist"));
    let mut ours = read(base("host/10-dpu-offload.conflist"));
    let plugin = ours["plugins"][0].as_object_mut().unwrap();
    let seconds = plugin.remove("agentReturnSeconds").unwrap().as_u64().unwrap();
    // A DaemonSet's pod is replaced within that time, and an ADD has 15 s of its 90 s left.
    assert!((60..=75).contains(&seconds));
    assert_eq!(ours, shipped);
}

/// A runtime passes the capabilities that a configuration declares, and drops the rest.
#[test]
fn shipped_configurations_have_host_ports_refused() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    for path in ["../10-dpu-offload.conflist", "host/10-dpu-offload.conflist"] {
        let text = fs::read_to_string(base(path)).unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        let mut configuration = list["plugins"][0].clone();
        configuration["cniVersion"] = list["cniVersion"].clone();
        configuration["name"] = list["name"].clone();
        configuration["network"] = "blue".into();
        configuration["agentSocket"] = json!(lab.socket());
        if configuration["capabilities"]["portMappings"] == true {
            let port = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
            configuration["runtimeConfig"] = json!({ "portMappings": [port] });
        }
        let add = Call::new("ADD", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
        lab.execute(&add).fails(109, &["8080/tcp", "gateway_mode = \"dpu\""]);
    }
    lab.assert_clean_slate();
}

#[test]
fn node_name_is_expanded_in_agent_file() {
    let folder = tempfile::tempdir().unwrap();
    let pki = Pki::make(folder.path().join("pki"));
    pki.issue("host", "node-7");
    let tls = pki.section("host", "node-7");
    let file = folder.path().join("it.toml");
    let text = "socket = \"/run/dpu-offload/${NODE_NAME}/agent.sock\"\n[dpu]\n\
                endpoint = \"${NODE_NAME}.dpu.example:7443\"\nname = \"dpu-${NODE_NAME}\"\n";
    fs::write(&file, format!("{text}{tls}")).unwrap();
    let check = |node: Option<&str>| {
        let mut command = Command::new(program("host-shim-agent"));
        command.arg("--config").arg(&file).arg("--check-config").env_remove("NODE_NAME");
        run(command.envs(node.map(|node| ("NODE_NAME", node))))
    };
    assert!(check(Some("node-7")).status.success(), "{:?}", check(Some("node-7")));
    let refused = check(None);
    let reported = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && reported.contains("it.toml:1:"), "{reported}");
    assert!(reported.contains("`NODE_NAME` is not set"), "{reported}");
}

#[test]
fn networks_of_multus_are_configurations_of_the_plugin() {
    for network in documents(&base("networks/networks.yaml")) {
        assert_eq!(network["apiVersion"], "k8s.cni.cncf.io/v1");
        let configuration: Value =
            serde_json::from_str(network["spec"]["config"].as_str().unwrap()).unwrap();
        assert_eq!(configuration["type"], "host-shim");
        assert_eq!(configuration["name"], network["metadata"]["name"]);
        let resource = &network["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"];
        let takes_devices = configuration["capabilities"]["deviceID"] == true;
        assert_eq!(resource.is_string(), takes_devices, "{network}");
    }
}

#[test]
fn manifest_certificates_match_mounted_secrets() {
    let certificates = documents(&base("cert-manager/certificates.yaml"));
    let mut secrets = BTreeSet::new();
    for certificate in &certificates {
        let spec = &certificate["spec"];
        let uris = texts(spec, "uris");
        assert_eq!(uris.len(), 1, "{certificate}");
        let identity: Identity = uris[0].parse().unwrap();
        let usage = if identity.role() == Role::Dpu { "server auth" } else { "client auth" };
        assert!(texts(spec, "usages").contains(&usage.to_owned()), "{certificate}");
        secrets.insert(spec["secretName"].clone().to_string());
    }
    let pod = pod("dpu");
    let volumes = list(&pod, "volumes");
    let mounted = volumes.into_iter().find(|volume| volume["name"] == "certificates").unwrap();
    assert!(secrets.contains(&mounted["secret"]["secretName"].to_string()), "{mounted}");
    let issuers = documents(&base("cert-manager/issuers.yaml"));
    let names: Vec<_> = issuers.iter().map(|issuer| &issuer["metadata"]["name"]).collect();
    for object in certificates.iter().chain(&issuers) {
        let issuer = &object["spec"]["issuerRef"]["name"];
        assert!(issuer.is_null() || names.contains(&issuer), "{object}");
    }
}
