# Selects the expensive tiers for a change. Sourced by hack/test, never run.
# shellcheck shell=bash

# CI's time for them, in addition to the tiers that always run: minutes on two idle cores.
MINUTES_FOR_CHANGES=23

# choose_tiers: prints what was selected and why, and sets CHOSEN_TIERS.
choose_tiers() {
    local wanted=() called=() others=() tier
    CHOSEN_TIERS=() LEFT=$MINUTES_FOR_CHANGES SEED=$(tree_seed)
    read_wanted
    sort_tiers
    # The whole tiers if there is time for all of them, otherwise their short forms.
    ((LEFT >= $(minutes_of "${called[@]}"))) || mapfile -t called < <(short_forms "${called[@]}")
    take_what_fits "${called[@]}"
    say "   called for: ${CHOSEN_TIERS[*]:-nothing}; others while there is time, drawn by the tree's seed $SEED"
    LEFT_OUT+=("${UNFIT[@]/%/: there is no time for it}")
    take_what_fits "${others[@]}"
    for tier in "${CHOSEN_TIERS[@]}"; do say "   chosen: $tier, $(field "$tier" minutes) min"; done
}

# read_wanted: sets the caller's `wanted` to the tiers for the change.
read_wanted() {
    local base changed paths path
    if ! { base=$(base_of_change) && [[ $base ]] && changed=$(changed_paths "$base"); }; then
        say "   no base to compare with: every tier's short form"
        wanted=(every)
        return
    fi
    mapfile -t paths < <(grep . <<<"$changed")
    say "   ${#paths[@]} files changed since ${base:0:10}"
    for path in "${paths[@]}"; do
        # shellcheck disable=SC2207 # names of tiers
        wanted+=($(tiers_of_path "$path"))
    done
}

# base_of_change: prints the commit, or nothing.
base_of_change() {
    local head base
    if [[ ${CI_BASE:-} ]]; then
        git rev-parse --verify --quiet "$CI_BASE^{commit}" ||
            { warn "hack/test: CI_BASE=$CI_BASE is no commit of this clone" && return 1; }
        return
    fi
    head=$(git rev-parse --verify --quiet HEAD) || return 1
    base=$(git merge-base HEAD origin/main 2>/dev/null) || base=''
    if [[ $base && $base != "$head" ]]; then say "$base"; else git rev-parse --verify --quiet 'HEAD^'; fi
}

# changed_paths BASE: includes uncommitted changes.
changed_paths() {
    local changed
    changed=$(git diff --name-only --no-renames "$1" -- && git ls-files --others --exclude-standard) || return
    sort -u <<<"$changed"
}

# tiers_of_path PATH: from the longest matching line of hack/test.d/tiers-by-path. Paths without a line mean every tier.
tiers_of_path() {
    awk -v path="$1" '
        /^#/ || !NF { next }
        (path == $1 || index(path, $1 "/") == 1) && length($1) > longest {
            longest = length($1)
            $1 = ""
            tiers = $0
        }
        END { gsub(/(^| )-( |$)/, " ", tiers); print longest ? tiers : "every" }
    ' "$ROOT/hack/test.d/tiers-by-path"
}

# sort_tiers: of the tiers that do not always run, puts the wanted ones into the caller's `called`, and the short forms
# of possible additional ones into its `others`. Mutants are only for hack/test all: they show what tests lack, whatever
# the change. Dependencies stay the same until Cargo.lock or deny.toml changes. The old kernel matters only to changes
# of the code that uses the kernel.
sort_tiers() {
    local tier named=" dependencies vm-old "
    for tier in "${TIERS[@]}"; do
        [[ $tier != *-short && $tier != mutants && " ${DEFAULT_TIERS[*]} " != *" $tier "* ]] || continue
        if [[ " ${wanted[*]} " != *" $tier "* && ( $named == *" $tier "* || " ${wanted[*]} " != *" every "* ) ]]; then
            [[ $named == *" $tier "* ]] || ! may_run "$tier" || others+=("$(short_forms "$tier")")
        elif may_run "$tier"; then
            called+=("$tier")
        else
            LEFT_OUT+=("$tier: it needs root")
        fi
    done
}

may_run() { ((EUID == 0)) || [[ $(field "$1" needs) != root ]]; }

# minutes_of TIER...
minutes_of() {
    local tier minutes=0
    for tier in "$@"; do minutes=$((minutes + $(field "$tier" minutes))); done
    say "$minutes"
}

# short_forms TIER...: a line for each.
short_forms() {
    local tier
    for tier in "$@"; do if is_tier "$tier-short"; then say "$tier-short"; else say "$tier"; fi; done
}

# take_what_fits TIER...: fills the remaining time. Starts with the tier that SEED selects, so that each has its turn,
# and the same tree gets the same tiers again. Sets UNFIT to the rest.
take_what_fits() {
    local place tier
    UNFIT=()
    for ((place = 0; place < $#; place++)); do
        tier=${@:(place + SEED) % $# + 1:1}
        if ((LEFT >= $(field "$tier" minutes))); then
            LEFT=$((LEFT - $(field "$tier" minutes)))
            CHOSEN_TIERS+=("$tier")
        else
            UNFIT+=("$tier")
        fi
    done
}

# tree_seed: a number from the content of the committed tree. Tests that run a sample use it, too.
tree_seed() {
    local tree
    tree=$(git -C "$ROOT" rev-parse --verify --quiet 'HEAD^{tree}' 2>/dev/null) || tree=0
    say $((16#${tree:0:7}))
}
