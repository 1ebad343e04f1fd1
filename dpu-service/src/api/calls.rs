//! The API's calls, and who may make them: one table, for all that has to know them.

use mtls::Role;

pub(super) const HOSTS: &[Role] = &[Role::Host];
const OPERATORS: &[Role] = &[Role::Operator];
const OPERATORS_AND_VIEWERS: &[Role] = &[Role::Operator, Role::Viewer];

/// What the paths of all calls of ours begin with.
const PACKAGE: &str = "/offload.v1.";

/// All calls of ours, and the roles that may make them.
const CALLS: &[(&str, &[Role])] = &[
    ("Operator/ApplyNetwork", OPERATORS),
    ("Operator/ChangeSubnets", OPERATORS),
    ("Operator/ClearQuarantine", OPERATORS),
    ("Operator/DeleteNetwork", OPERATORS),
    ("Operator/Examine", OPERATORS_AND_VIEWERS),
    ("Operator/GetAttachment", OPERATORS_AND_VIEWERS),
    ("Operator/GetDpu", OPERATORS_AND_VIEWERS),
    ("Operator/ListAttachments", OPERATORS_AND_VIEWERS),
    ("Operator/ListNetworks", OPERATORS_AND_VIEWERS),
    ("Operator/ListPhases", OPERATORS_AND_VIEWERS),
    ("Operator/ListPools", OPERATORS_AND_VIEWERS),
    ("Operator/ListTraffic", OPERATORS_AND_VIEWERS),
    ("Operator/ListVfs", OPERATORS_AND_VIEWERS),
    ("Operator/Mend", OPERATORS),
    ("Operator/ReleaseAttachment", OPERATORS),
    ("Operator/Watch", OPERATORS_AND_VIEWERS),
    ("WorkloadNetwork/Attach", HOSTS),
    ("WorkloadNetwork/AttachAll", HOSTS),
    ("WorkloadNetwork/AwaitPort", HOSTS),
    ("WorkloadNetwork/Check", HOSTS),
    ("WorkloadNetwork/Collect", HOSTS),
    ("WorkloadNetwork/Detach", HOSTS),
    ("WorkloadNetwork/Session", HOSTS),
    ("WorkloadNetwork/Status", HOSTS),
];

/// Services that the API has from gRPC, whose calls all may make.
const COMMON: [&str; 3] = [
    "/grpc.health.v1.Health/",
    "/grpc.reflection.v1.ServerReflection/",
    "/grpc.reflection.v1alpha.ServerReflection/",
];

/// The names of all calls of ours, such as `WorkloadNetwork/Attach`.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CALLS.iter().map(|(name, _)| *name)
}

/// The name of the call of that gRPC path. Empty: it is none of ours.
pub(super) fn name_of(path: &str) -> &str {
    path.strip_prefix(PACKAGE).unwrap_or_default()
}

/// The roles that may make the call of that gRPC path. `None`: there is no such call, and nobody may.
pub(super) fn roles(path: &str) -> Option<&'static [Role]> {
    if COMMON.iter().any(|service| path.starts_with(service)) {
        return Some(&Role::ALL);
    }
    let name = name_of(path);
    CALLS.iter().find(|(known, _)| *known == name).map(|(_, roles)| *roles)
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::DESCRIPTORS;
    use prost::Message;

    use super::*;

    #[test]
    fn every_call_of_the_api_is_known() {
        let files = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap().file;
        let services = files.iter().flat_map(|file| &file.service);
        let methods = services.flat_map(|service| {
            let name = |method: &prost_types::MethodDescriptorProto| {
                format!("{}/{}", service.name(), method.name())
            };
            service.method.iter().map(name)
        });
        let mut methods: Vec<_> = methods.collect();
        methods.sort();
        assert!(names().eq(methods), "not as the descriptors have them");
    }

    #[test]
    fn nobody_may_call_what_is_not_there() {
        for path in [
            "",
            "/",
            "/x",
            "/x/y",
            "/offload.v1.",
            "/offload.v1.Operator/FormatDisk",
            "offload.v1.Operator/GetDpu",
            "//offload.v1.Operator/GetDpu",
        ] {
            assert_eq!(roles(path), None, "{path}");
        }
    }
}
