//! The examples below each command's help. A test runs each through the parser.

pub(super) const STATUS: &str = "\
Examples:
  dpuctl status
  dpuctl status --wait Ready --timeout 60
  dpuctl status -o json | jq '.conditions[] | select(.affectsPods)'";

pub(super) const DOCTOR: &str = "\
Examples:
  dpuctl doctor
  dpuctl doctor --fix --timeout 60";

pub(super) const GET: &str = "\
Examples:
  dpuctl get vfs
  dpuctl get attachments web/shop
  dpuctl get hosts -o wide";

pub(super) const GET_VFS: &str = "\
Examples:
  dpuctl get vfs --host node-1 --sort-by STATE
  dpuctl get vfs pf0vf3 -o yaml
  dpuctl get vfs -o json | jq -r '.vfs[] | select(.state == \"VF_STATE_QUARANTINED\") | .detail'";

pub(super) const GET_ATTACHMENTS: &str = "\
Examples:
  dpuctl get attachments 10.1.0.5
  dpuctl get attachments web/shop -o wide
  dpuctl get attachments --network blue --sort-by AGE
  dpuctl get attachments --host node-1 --watch
  dpuctl get attachments --host node-1 -o name | xargs -n 1 dpuctl describe attachment";

pub(super) const GET_NETWORKS: &str = "\
Examples:
  dpuctl get networks --sort-by .attachments
  dpuctl get networks blue -o yaml > blue.yaml";

pub(super) const GET_POOLS: &str = "\
Examples:
  dpuctl get pools
  dpuctl get pools default --watch --no-headers";

pub(super) const GET_HOSTS: &str = "\
Examples:
  dpuctl get hosts
  dpuctl get hosts node-1 -o wide
  dpuctl get hosts -o name | xargs -n 1 dpuctl describe host";

pub(super) const DESCRIBE: &str = "\
Examples:
  dpuctl describe dpu
  dpuctl describe network blue";

pub(super) const DESCRIBE_ATTACHMENT: &str = "\
Examples:
  dpuctl describe attachment 0190aaaa-bbbb
  dpuctl get attachments web/shop -o name | xargs -n 1 dpuctl describe attachment";

pub(super) const DESCRIBE_DPU: &str = "\
Examples:
  dpuctl describe dpu --dpu dpu-2 --endpoint 192.168.100.3:7443";

pub(super) const DESCRIBE_HOST: &str = "\
Examples:
  dpuctl describe host node-1";

pub(super) const DESCRIBE_NETWORK: &str = "\
Examples:
  dpuctl describe network blue";

pub(super) const EVENTS: &str = "\
Examples:
  dpuctl events --since 10m --type warning
  dpuctl events --object node-1
  dpuctl events --follow -o json | jq -r .message";

pub(super) const AUDIT: &str = "\
Examples:
  dpuctl audit --since 3d
  dpuctl audit --object blue --operator alice -o json";

pub(super) const BUNDLE: &str = "\
Examples:
  dpuctl bundle
  dpuctl bundle -o report.tar.gz";

pub(super) const TOP: &str = "\
Examples:
  dpuctl top --network blue --lines 5
  dpuctl top --once --interval 10
  dpuctl top --phases";

pub(super) const APPLY: &str = "\
Examples:
  dpuctl apply -f blue.yaml --dry-run
  dpuctl get networks blue -o yaml | dpuctl apply -f -";

pub(super) const EDIT: &str = "\
Examples:
  dpuctl edit network blue";

pub(super) const RENAME: &str = "\
Examples:
  dpuctl rename network blue azure";

pub(super) const ADD: &str = "\
Examples:
  dpuctl add subnet blue 10.3.0.0/16 --gateway 10.3.0.1
  dpuctl add subnet blue 10.3.0.0/16 --exclude 10.3.1.0/24 --exclude 10.3.2.7";

pub(super) const DELETE: &str = "\
Examples:
  dpuctl delete network blue
  dpuctl delete subnet blue 10.3.0.0/16";

pub(super) const DELETE_NETWORK: &str = "\
Examples:
  dpuctl delete network blue
  dpuctl get attachments --network blue";

pub(super) const DELETE_SUBNET: &str = "\
Examples:
  dpuctl delete subnet blue 10.3.0.0/16";

pub(super) const RELEASE: &str = "\
Examples:
  dpuctl release 0190aaaa-bbbb --reason maintenance
  dpuctl release --host node-9 --reason decommissioned --yes
  dpuctl get attachments --network blue -o name | xargs -n 1 dpuctl release --reason drained --yes";

pub(super) const CLEAR_QUARANTINE: &str = "\
Examples:
  dpuctl clear-quarantine pf0vf3";

pub(super) const PKI: &str = "\
Examples:
  dpuctl pki init --dir pki
  dpuctl pki issue operator alice --dir pki";

pub(super) const PKI_INIT: &str = "\
Examples:
  dpuctl pki init --dir pki --trust-domain lab.example --days 365";

pub(super) const PKI_ISSUE: &str = "\
Examples:
  dpuctl pki issue host node-1 --dir pki
  dpuctl pki issue viewer eve --dir pki --out /tmp --days 30";

pub(super) const EXPLAIN: &str = "\
Examples:
  dpuctl explain VFS_EXHAUSTED
  dpuctl explain 103
  dpuctl explain | grep ADDRESS";

pub(super) const COMPLETIONS: &str = "\
Examples:
  dpuctl completions bash > /etc/bash_completion.d/dpuctl";
