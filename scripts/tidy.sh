#!/usr/bin/env bash
# Runs clang-tidy with the checks of .clang-tidy.  Ends with 1 if it finds something.
#
#   scripts/tidy.sh                  what has changed, and some of the rest (CI)
#   scripts/tidy.sh FILE...          these
#   scripts/tidy.sh --all            all of store/, fs/ and kernels/
#
# Not all in CI: a file takes 3 to 25 s of a core, most of it in the static analyzer, so all of them take 15 to
# 20 minutes on two cores.  CI looks at what differs from WEIGHTFS_TIDY_BASE (a revision; default: where the branch
# left main; on main itself, the commit before), at most WEIGHTFS_TIDY_MAX files (12), and at 4 others, the
# next 4 with each commit.  It says how many it left out.  Run --all before a release, and when
# .clang-tidy changes.
#
# A header is checked with the .cpp of its name.  Compile commands come from the preset dev, configured in
# build-tidy/: a unity build has none for single files.  Nothing is built.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
changed_max=${WEIGHTFS_TIDY_MAX:-12}
others_max=4
cd "$ROOT"

# From the disk: there may be no git.
all_files() { find store fs kernels -name '*.cpp' | LC_ALL=C sort; }

base_revision() {
  local head base
  head=$(git rev-parse --quiet --verify HEAD) || return 0
  for main in main origin/main; do
    base=$(git merge-base "$head" "$main" 2>/dev/null) && [ "$base" != "$head" ] && break
    base=
  done
  echo "${WEIGHTFS_TIDY_BASE:-${base:-$(git rev-parse --quiet --verify HEAD~1 || echo "$head")}}"
}

# What differs from the base, committed or not.  A file that was only moved does not.
changed_files() {
  local base
  base=$(base_revision)
  [ -n "$base" ] || return 0
  { git diff --name-only --find-renames=100% --diff-filter=AM "$base" -- store fs kernels
    git ls-files --others --exclude-standard -- store fs kernels; } | sources_of
}

# Of names, one a line, the .cpp files that check them.
sources_of() {
  sed -nE 's/\.(cpp|hpp)$/.cpp/p' | LC_ALL=C sort -u | while read -r file; do
    [ ! -e "$file" ] || echo "$file"
  done
}

# choose_files: some of them, to stdout; what is left out is told.
choose_files() {
  local changed others turn
  mapfile -t changed < <(changed_files)
  mapfile -t others < <(LC_ALL=C comm -23 <(all_files) <(printf '%s\n' "${changed[@]}"))
  turn=$(git rev-list --count HEAD 2>/dev/null || date +%j)
  printf '%s\n' "${changed[@]:0:changed_max}"
  for ((i = 0; i < others_max && i < ${#others[@]}; i++)); do
    echo "${others[$(((10#$turn * others_max + i) % ${#others[@]}))]}"
  done
  [ ${#changed[@]} -le "$changed_max" ] ||
    echo "left out: $((${#changed[@]} - changed_max)) of ${#changed[@]} changed files; scripts/tidy.sh --all checks all" >&2
}

tidy() {
  local said result=0
  said=$(clang-tidy-14 -p build-tidy --quiet "$1" 2>&1) || result=1
  grep -vE '^[0-9]+ warnings? (generated|treated as errors?)|^Suppressed |^Use -header-filter' <<<"$said" || true
  return $result
}

case "${1:-}" in
  -h | --help) sed -n '2,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  --all) mapfile -t files < <(all_files) ;;
  '') mapfile -t files < <(choose_files | sed '/^$/d') ;;
  *) mapfile -t files < <(printf '%s\n' "$@" | sources_of) ;;
esac
[ ${#files[@]} -gt 0 ] || { echo "no source to check" >&2; exit 2; }
command -v clang-tidy-14 >/dev/null || { as_root "$@"; need_packages clang-tidy-14; }
cmake --preset dev -B build-tidy -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null

say "clang-tidy: ${#files[@]} files"
export -f tidy
# shellcheck disable=SC2016
printf '%s\n' "${files[@]}" | xargs -P "$JOBS" -I{} bash -c 'tidy "$1"' _ {} || exit 1
echo "nothing found"
