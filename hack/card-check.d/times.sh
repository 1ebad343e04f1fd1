# Times of ADD, DEL and the floor. Sourced by hack/card-check, never run.
# shellcheck shell=bash

# measure_pods COUNT: prints the times of ADD; the file `del` gets those of DEL.
measure_pods() {
    local number start
    apply '{}' >&2
    for ((number = 0; number < $1; number++)); do
        start=$EPOCHREALTIME
        attach "$NAME"
        us_since "$start" >>"$WORK/add"
        start=$EPOCHREALTIME
        detach "$NAME"
        us_since "$start" >>"$WORK/del"
    done
    leave_nothing
    times add
}

us_since() { say $((${EPOCHREALTIME/[^0-9]/} - ${1/[^0-9]/})); }

# times FILE: median and maximum of its microseconds, as two cells.
times() {
    [[ -s $WORK/$1 ]] || die "not measured: see the rows above"
    sort -n "$WORK/$1" | awk '
        { us[NR] = $1 }
        END { printf "%.2f | %.2f\n", us[int((NR + 1) / 2)] / 1000, us[NR] / 1000 }'
}

# floor COUNT: with a free VF of this host, which is returned unchanged. The file `floor-del` gets the times of the way
# back.
floor() {
    local number start host free device vf
    host=${HOST:-$(host_name)}
    dpuctl get vfs --host "$host" >&2
    wait_until 30 "a free VF" free_vf "$host" || free_vf "$host" >/dev/null
    free=$(free_vf "$host")
    device=${free% *}
    vf=$(netdev_of "$device")
    refuse_used "$vf"
    say "${free#* }" >"$WORK/representor"
    say "$vf" >"$WORK/vf"
    for ((number = 0; number < $1; number++)); do
        start=$EPOCHREALTIME
        "${HOST_IP[@]}" link set "$vf" netns "$NAME" name eth0
        printf '%s\n' "link set lo up" "link set eth0 up" "address add 198.18.0.2/24 dev eth0" |
            ip -n "$NAME" -batch -
        us_since "$start" >>"$WORK/floor-add"
        start=$EPOCHREALTIME
        ip -n "$NAME" link set eth0 netns "${HOST_NETNS:-$$}" name "$vf"
        us_since "$start" >>"$WORK/floor-del"
    done
    rm "$WORK/vf"
    wait_until 30 "VF $device to be free again" is_free "$device" "$host"
    times floor-add
}

# return_vf: moves the VF back to the host if an aborted measurement left it in the pod. It would end with the pod's
# namespace.
return_vf() {
    [[ ! -e $WORK/vf ]] || ip -n "$NAME" link set eth0 netns "${HOST_NETNS:-$$}" name "$(<"$WORK/vf")" || true
    rm -f "$WORK/vf"
}

# host_name: the name in the agent's certificate.
host_name() {
    local report
    report=$(agent_status -o json) || return 1
    jq -er '.certificate.identity | capture("/host/(?<name>[^/]+)$").name' <<<"$report" ||
        die "the agent's certificate names no host: say --host NAME"
}

# free_vf HOST: its device and its representor. Another host of the DPU may have devices with the same addresses.
free_vf() {
    local vfs
    vfs=$(dpuctl get vfs --host "$1" -o json) || return 1
    jq -er 'first(.vfs[] | select(.state == "VF_STATE_FREE" and .representor != "")) | "\(.vf.device) \(.representor)"' \
        <<<"$vfs" || { warn "host $1 has no free VF with a representor: see dpuctl get vfs" && return 1; }
}

# is_free DEVICE HOST
is_free() {
    dpuctl get vfs --host "$2" -o json |
        jq -e --arg device "$1" 'any(.vfs[]; .vf.device == $device and .state == "VF_STATE_FREE")'
}

# netdev_of DEVICE: a VF of the software card has its address in its alias.
netdev_of() {
    local folder=/sys/bus/pci/devices/$1/net names
    if [[ -d $folder ]]; then
        names=$(ls "$folder")
    else
        names=$("${HOST_IP[@]}" -j link show |
            jq -r --arg device "$1" '.[] | select(.ifalias // "" | contains(" " + $device + " ")) | .ifname')
    fi
    [[ $names && $names != *$'\n'* ]] || die "VF $1 needs one netdev on this host, and has ${names:-none}"
    say "$names"
}

# refuse_used NETDEV: fails if the host uses it.
refuse_used() {
    "${HOST_IP[@]}" -j address show dev "$1" | jq -e '.[0] | .addr_info == [] and .master == null' >/dev/null ||
        die "$1 has addresses or a master, so it is in use and was not moved: remove them"
}

# floor_of_dpu COUNT: with a single ip process, because the clock counts hundredths of a second.
floor_of_dpu() {
    local representor clock before after
    [[ -s $WORK/representor ]] || die "not measured: see the rows above"
    representor=$(<"$WORK/representor")
    local commands="link set $representor master $NAME; link set $representor up; link set $representor down; link set $representor nomaster"
    clock=$(on_dpu "ip link add $NAME type bridge && ip link set $NAME up &&
        read before rest </proc/uptime &&
        { for i in \$(seq $1); do echo '$commands' | tr ';' '\\n'; done; } | ip -batch - &&
        read after rest </proc/uptime && ip link delete $NAME && echo \$before \$after")
    read -r before after <<<"$clock"
    awk -v before="$before" -v after="$after" -v count="$1" \
        'BEGIN { printf "%.2f | -\n", (after - before) * 1000 / count }'
}
