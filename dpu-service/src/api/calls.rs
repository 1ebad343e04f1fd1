//! Table of the API's calls and the roles that may make them.

use mtls::Role;

pub(super) const HOSTS: &[Role] = &[Role::Host];
const OPERATORS: &[Role] = &[Role::Operator];
const OPERATORS_AND_VIEWERS: &[Role] = &[Role::Operator, Role::Viewer];

/// Prefix of all paths of this API.
const PACKAGE: &str = "/offload.v1.";

/// How a call counts towards the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Ends with its answer.
    Call,
    /// A call with a large answer that takes processor time.
    List,
    /// May stay open for long.
    Stream,
}

use Kind::{Call, List, Stream};

/// All calls of this API and the roles that may make them.
const CALLS: &[(&str, Kind, &[Role])] = &[
    ("Operator/ApplyNetwork", Call, OPERATORS),
    ("Operator/ChangeSubnets", Call, OPERATORS),
    ("Operator/ClearQuarantine", Call, OPERATORS),
    ("Operator/DeleteNetwork", Call, OPERATORS),
    ("Operator/Examine", Call, OPERATORS_AND_VIEWERS),
    ("Operator/GetAttachment", Call, OPERATORS_AND_VIEWERS),
    ("Operator/GetDebugInfo", List, OPERATORS_AND_VIEWERS),
    ("Operator/GetDpu", Call, OPERATORS_AND_VIEWERS),
    ("Operator/ListAttachments", List, OPERATORS_AND_VIEWERS),
    ("Operator/ListAudit", List, OPERATORS_AND_VIEWERS),
    ("Operator/ListEvents", List, OPERATORS_AND_VIEWERS),
    ("Operator/ListNetworks", List, OPERATORS_AND_VIEWERS),
    ("Operator/ListPhases", List, OPERATORS_AND_VIEWERS),
    ("Operator/ListPools", List, OPERATORS_AND_VIEWERS),
    ("Operator/ListTraffic", List, OPERATORS_AND_VIEWERS),
    ("Operator/ListVfs", List, OPERATORS_AND_VIEWERS),
    ("Operator/ReleaseAttachment", Call, OPERATORS),
    ("Operator/RenameNetwork", Call, OPERATORS),
    ("Operator/Repair", Call, OPERATORS),
    ("Operator/Watch", Stream, OPERATORS_AND_VIEWERS),
    ("WorkloadNetwork/Attach", Call, HOSTS),
    ("WorkloadNetwork/AttachAll", Call, HOSTS),
    ("WorkloadNetwork/AwaitPort", Call, HOSTS),
    ("WorkloadNetwork/Check", Call, HOSTS),
    ("WorkloadNetwork/Collect", Call, HOSTS),
    ("WorkloadNetwork/Detach", Call, HOSTS),
    ("WorkloadNetwork/Session", Stream, HOSTS),
    ("WorkloadNetwork/Status", Call, HOSTS),
];

/// Standard gRPC services, whose calls every role may make.
const COMMON: [(&str, Kind); 4] = [
    ("/grpc.health.v1.Health/Watch", Stream),
    ("/grpc.health.v1.Health/", Call),
    ("/grpc.reflection.v1.ServerReflection/", Stream),
    ("/grpc.reflection.v1alpha.ServerReflection/", Stream),
];

/// Names of all calls of this API, such as `WorkloadNetwork/Attach`.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CALLS.iter().map(|(name, ..)| *name)
}

/// Name of the call of a gRPC path. Empty: not of this API.
pub(super) fn name_of(path: &str) -> &str {
    path.strip_prefix(PACKAGE).unwrap_or_default()
}

/// Kind and roles of the call of a gRPC path. `None`: there is no such call.
pub(super) fn rules(path: &str) -> Option<(Kind, &'static [Role])> {
    if let Some((_, kind)) = COMMON.iter().find(|(prefix, _)| path.starts_with(prefix)) {
        return Some((*kind, &Role::ALL));
    }
    let name = name_of(path);
    CALLS.iter().find(|(known, ..)| *known == name).map(|(_, kind, roles)| (*kind, *roles))
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
            let call = |method: &prost_types::MethodDescriptorProto| {
                let name = format!("{}/{}", service.name(), method.name());
                (name, method.server_streaming())
            };
            service.method.iter().map(call)
        });
        let mut methods: Vec<_> = methods.collect();
        methods.sort();
        let known = CALLS.iter().map(|(name, kind, _)| ((*name).to_owned(), *kind == Stream));
        assert!(known.eq(methods), "not as the descriptors have them");
    }

    #[test]
    fn streams_of_common_services_are_known() {
        let kind = |path| rules(path).map(|(kind, _)| kind);
        assert_eq!(kind("/grpc.health.v1.Health/Watch"), Some(Stream));
        assert_eq!(kind("/grpc.health.v1.Health/Check"), Some(Call));
        assert_eq!(kind("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"), Some(Stream));
    }

    #[test]
    fn unknown_calls_are_refused_to_every_role() {
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
            assert_eq!(rules(path), None, "{path}");
        }
    }
}
