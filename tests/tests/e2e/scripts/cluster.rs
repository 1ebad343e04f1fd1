//! `hack/cluster` without a cluster.

use std::{fs, process::Command};

use e2e::run;

use super::{assert_prints, fails, hack, path, succeeds, text, write_program};

#[test]
fn cluster_refuses_a_folder_without_kubelet() {
    let folder = tempfile::tempdir().unwrap();
    let printed = fails(hack("cluster").arg("up").env("OFFLOAD_KUBERNETES_DIR", folder.path()));
    let named = format!("OFFLOAD_KUBERNETES_DIR={} has no kubelet", folder.path().display());
    assert_prints(&printed, &[&named]);
}

/// A cached download is used: its folder is named after the versions.
#[test]
fn cluster_versions_match_running_programs() {
    let (programs, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in [
        "kubelet",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "etcd",
        "kubectl",
    ] {
        let script = format!("#!/bin/sh\necho {name} 9.9 \"$@\"\n");
        write_program(&programs.path().join(name), &script);
    }
    let mut recipe = Command::new("sh");
    recipe.args([
        "-c",
        "cat cluster.d/prepare.sh cluster.d/kubernetes.sh debian.sh packages.sh | sha256sum",
    ]);
    let recipe = text(&run(recipe.current_dir(path(""))));
    let tree = cache.path().join(format!("{}-bare", &recipe[..12]));
    fs::create_dir(&tree).unwrap();
    let packages = "etcd-server 3\ncontainerd 1\nrunc 1\ncontainernetworking-plugins 1\n\
                    busybox-static 1\nkubernetes-client 1\niptables 1\nconntrack 1\n";
    fs::write(tree.join("versions"), packages).unwrap();
    let mut versions = hack("cluster");
    versions.arg("versions").env("OFFLOAD_CLUSTER_DIR", cache.path());
    let printed = succeeds(versions.env("OFFLOAD_KUBERNETES_DIR", programs.path()));
    for line in [
        "kubernetes kubelet 9.9 --version",
        "etcd-server etcd 9.9 --version",
        "containerd 1",
        "kubernetes-client kubectl 9.9 version --client",
    ] {
        assert!(printed.lines().any(|it| it == line), "{line}: {printed}");
    }
    assert!(!printed.contains("etcd-server 3"), "{printed}");
}
