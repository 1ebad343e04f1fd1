# Pods of a network with one setting, and pings between them. Sourced by hack/card-check, never run.
# shellcheck shell=bash

SETTINGS=(
    'nothing special    {}'
    'VLAN               {"vlan": 3900}'
    'trunk              {"vlan": 3900, "trunk": [3901]}'
    'MTU 9000           {"mtu": 9000}'
    'egress limit       {"bandwidth": {"egressRate": 100000000}}'
    'ingress limit      {"bandwidth": {"ingressRate": 100000000}}'
    'egress share       {"bandwidth": {"egressShare": 10000000}}'
    'total egress       {"totalEgressRate": 1000000000}'
    'guard of MACs      {"antiSpoofing": "mac"}'
    'no guard           {"antiSpoofing": "off"}'
    'allowed address    {"allowedSources": ["198.18.0.250"]}'
    'allowed MAC        {"allowedSources": ["02:00:5e:00:01:07"]}'
    'ingress rules      {"allow": [{"protocol": "icmp"}]}'
    'gateway on the DPU  {"gatewayMode": "dpu", "subnets": [{"cidr": "198.18.0.0/24", "gateway": "198.18.0.1"}]}'
    'routes             {"routes": [{"destination": "198.19.0.0/24", "gateway": "198.18.0.254"}]}'
    'DNS                {"dns": {"nameservers": ["198.18.0.253"]}}'
    'link group         {"linkGroup": 39}'
)

# try JSON: the outcome for two pods of a network with that setting.
try() {
    local outcome status=0
    outcome=$(outcome_of "$1") || status=1
    leave_nothing || status=1
    say "$outcome"
    return "$status"
}

# outcome_of JSON: fails with the error of what went wrong.
outcome_of() {
    local words pod address
    words=$(apply "$1" 2>&1) || { (($? == 1)) && say "refused: $words" && return; } || { warn "$words" && return 1; }
    for pod in "${PODS[@]}"; do
        words=$(attach "$pod" 2>&1) && continue
        [[ $words == *UNSUPPORTED* ]] && say "refused: $words" && return
        warn "$words"
        return 1
    done
    if address=$(unanswered); then say "accepted, but no answer to ping from $address"; else say "works"; fi
}

# apply JSON: creates a network with that setting. dpuctl exits with 1 if the service refuses it.
apply() {
    jq -n --argjson setting "$1" --arg name "$NAME" \
        '{name: $name, subnets: [{cidr: "198.18.0.0/24"}]} + $setting' >"$WORK/network.json" || return 2
    dpuctl apply -f "$WORK/network.json"
}

# attach POD
attach() {
    local answer=$WORK/$1.json
    cni ADD "$AGENT" "$NAME" "$1" "$1" eth0 >"$answer" && return
    jq -r '"\(.msg) (\(.details // "no details"))"' "$answer" >&2 2>/dev/null || cat "$answer" >&2
    return 1
}

detach() { cni DEL "$AGENT" "$NAME" "$1" "$1" eth0 >&2; }

# unanswered: prints the address that does not answer the first pod: the second pod's, or the gateway's if the network
# has one. Fails if all answer. Uses full-size frames.
unanswered() {
    local mtu addresses address
    mtu=$(ip -n "${PODS[0]}" -j link show eth0 | jq '.[0].mtu')
    addresses=$(jq -r '.ips[0] | .address, (.gateway // empty)' "$WORK/${PODS[1]}.json")
    for address in ${addresses:-unknown}; do
        # Repeat until an answer arrives: a port may start to forward later.
        in_netns "${PODS[0]}" ping -n -c 1 -w 5 -M "do" -s "$((mtu - 28))" "${address%/*}" >&2 && continue
        say "${address%/*}"
        return
    done
    return 1
}

# leave_nothing: removes the pods' interfaces and the network. A pod whose ADD has failed needs a DEL, too.
leave_nothing() {
    local pod status=0
    return_vf
    [[ -e $WORK/network.json ]] || return 0
    for pod in "${PODS[@]}"; do detach "$pod" || status=1; done
    delete_network && ((status == 0)) && rm "$WORK/network.json"
}

# A DEL is answered before the service has released the attachment.
delete_network() {
    wait_until 10 "the network $NAME to be deleted" network_goes || dpuctl delete network "$NAME" >&2
}

network_goes() { dpuctl delete network "$NAME" || is_without_network; }

is_without_network() {
    local names
    names=$(dpuctl get networks -o name) && ! grep -qx "network/$NAME" <<<"$names"
}
