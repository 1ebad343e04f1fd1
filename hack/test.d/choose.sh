# Which expensive tiers a change calls for. Sourced by hack/test, never run.
# shellcheck shell=bash

# What CI has for them, beside the tiers that always run: minutes on two quiet cores.
MINUTES_FOR_CHANGES=22

# choose_tiers: prints what was chosen and why, and leaves the tiers in CHOSEN_TIERS.
choose_tiers() {
    local base paths path wanted=() tier
    CHOSEN_TIERS=()
    base=$(base_of_change) && mapfile -t paths < <(changed_paths "$base")
    if [[ ! $base ]]; then
        say "   no base to compare with: every tier's short form"
        wanted=(every)
    else
        say "   ${#paths[@]} files changed since ${base:0:10}"
        for path in "${paths[@]}"; do
            # shellcheck disable=SC2207 # names of tiers
            wanted+=($(tiers_of_path "$path"))
        done
    fi
    take_wanted "${wanted[@]}"
    rotate_in_others
    for tier in "${CHOSEN_TIERS[@]}"; do say "   chosen: $tier, $(field "$tier" minutes) min"; done
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

# changed_paths BASE: also what is not committed yet.
changed_paths() {
    { git diff --name-only "$1" -- && git ls-files --others --exclude-standard; } | sort -u
}

# tiers_of_path PATH: by the longest line of hack/test.d/changes that fits. Paths without a line mean every tier.
tiers_of_path() {
    awk -v path="$1" '
        /^#/ || !NF { next }
        (path == $1 || index(path, $1 "/") == 1) && length($1) > longest {
            longest = length($1)
            $1 = ""
            tiers = $0
        }
        END { gsub(/(^| )-( |$)/, " ", tiers); print longest ? tiers : "every" }
    ' "$ROOT/hack/test.d/changes"
}

# take_wanted TIER...: as a whole if there is time for all of them, else each one's short form.
take_wanted() {
    local tier minutes=0 whole=()
    for tier in "${TIERS[@]}"; do
        may_be_chosen "$tier" || continue
        [[ " $* " == *" $tier "* || " $* " == *" every "* && $tier != dependencies ]] || continue
        whole+=("$tier") minutes=$((minutes + $(field "$tier" minutes)))
    done
    for tier in "${whole[@]}"; do
        if ((minutes > MINUTES_FOR_CHANGES)); then tier=$(short_form "$tier"); fi
        CHOSEN_TIERS+=("$tier")
    done
}

# may_be_chosen TIER: not the tiers that run in any case, short forms, and what this user cannot run. Mutants say what
# tests lack, whatever the change, and are for hack/test all.
may_be_chosen() {
    [[ $1 != mutants ]] || return 1
    [[ $1 != *-short && " ${NEWCOMERS[*]} " != *" $1 "* ]] && { ((EUID == 0)) || [[ $(field "$1" needs) != root ]]; }
}

# short_form TIER
short_form() { if is_tier "$1-short"; then say "$1-short"; else say "$1"; fi; }

# rotate_in_others: with the time that is left, short forms of tiers that the change does not call for. Which ones is
# drawn by the hash of the tree, so that each has its turn, and the same tree has the same ones again.
rotate_in_others() {
    local seed tier left=$MINUTES_FOR_CHANGES others=() place
    seed=$(tree_seed)
    say "   seed of this tree, which draws others while there is time: $seed"
    for tier in "${CHOSEN_TIERS[@]}"; do left=$((left - $(field "$tier" minutes))); done
    for tier in "${TIERS[@]}"; do
        may_be_chosen "$tier" || continue
        [[ " ${CHOSEN_TIERS[*]} " == *" $tier "* || " ${CHOSEN_TIERS[*]} " == *" $tier-short "* ]] ||
            others+=("$(short_form "$tier")")
    done
    for ((place = 0; place < ${#others[@]}; place++)); do
        tier=${others[(place + seed) % ${#others[@]}]}
        ((left >= $(field "$tier" minutes))) || continue
        left=$((left - $(field "$tier" minutes)))
        CHOSEN_TIERS+=("$tier")
    done
}

# tree_seed: a number that the content of the committed tree decides; also what tests that try a sample draw it by.
tree_seed() {
    local tree
    tree=$(git -C "$ROOT" rev-parse --verify --quiet 'HEAD^{tree}' 2>/dev/null) || tree=0
    say $((16#${tree:0:7}))
}
