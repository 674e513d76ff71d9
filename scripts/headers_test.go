package scripts_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/scripts"
)

// variables are the scripts by the names of their files.
var variables = map[string]*scripts.Script{
	"reentrant_acquire":         scripts.ReentrantAcquire,
	"reentrant_acquire_fenced":  scripts.ReentrantAcquireFenced,
	"reentrant_count":           scripts.ReentrantCount,
	"reentrant_force":           scripts.ReentrantForce,
	"reentrant_info":            scripts.ReentrantInfo,
	"reentrant_release":         scripts.ReentrantRelease,
	"reentrant_release_receipt": scripts.ReentrantReleaseReceipt,
	"reentrant_renew":           scripts.ReentrantRenew,
	"rwlock_downgrade":          scripts.RwlockDowngrade,
	"rwlock_force":              scripts.RwlockForce,
	"rwlock_hold_renew":         scripts.RwlockHoldRenew,
	"rwlock_info":               scripts.RwlockInfo,
	"rwlock_prune":              scripts.RwlockPrune,
	"rwlock_read_acquire":       scripts.RwlockReadAcquire,
	"rwlock_read_release":       scripts.RwlockReadRelease,
	"rwlock_read_renew":         scripts.RwlockReadRenew,
	"rwlock_read_withdraw":      scripts.RwlockReadWithdraw,
	"rwlock_write_acquire":      scripts.RwlockWriteAcquire,
	"rwlock_write_release":      scripts.RwlockWriteRelease,
	"rwlock_write_withdraw":     scripts.RwlockWriteWithdraw,
	"segmented_count":           scripts.SegmentedCount,
	"stock_acknowledge":         scripts.StockAcknowledge,
	"stock_add":                 scripts.StockAdd,
	"stock_arrived":             scripts.StockArrived,
	"stock_bucket":              scripts.StockBucket,
	"stock_cancel":              scripts.StockCancel,
	"stock_confirm":             scripts.StockConfirm,
	"stock_extend":              scripts.StockExtend,
	"stock_get":                 scripts.StockGet,
	"stock_give":                scripts.StockGive,
	"stock_init":                scripts.StockInit,
	"stock_open":                scripts.StockOpen,
	"stock_refund":              scripts.StockRefund,
	"stock_reserve":             scripts.StockReserve,
	"stock_resize":              scripts.StockResize,
	"stock_scan":                scripts.StockScan,
	"stock_settle":              scripts.StockSettle,
	"stock_sweep":               scripts.StockSweep,
	"stock_take":                scripts.StockTake,
	"stock_view":                scripts.StockView,
}

// guard is the one file that is no script of its own.
const guard = "fence_guard"

// luaFiles are the texts of lua/*.lua by name, with what they include.
func luaFiles(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("lua", "*.*"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	texts := map[string]string{}
	included, err := filepath.Glob(filepath.Join("lua", "include", "*"))
	require.NoError(t, err)
	defer func() {
		for _, path := range included {
			piece, err := os.ReadFile(path)
			require.NoError(t, err)
			line, used := "-- include: "+strings.TrimSuffix(filepath.Base(path), ".lua")+"\n", false
			for name, text := range texts {
				used = used || strings.Contains(text, line)
				texts[name] = strings.Replace(text, line, string(piece), 1)
			}
			require.True(t, used, "nobody includes %s", path)
		}
	}()
	for _, path := range paths {
		require.Equal(t, ".lua", filepath.Ext(path), path)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		texts[strings.TrimSuffix(filepath.Base(path), ".lua")] = string(text)
	}
	return texts
}

func TestFiles_eachHasItsVariable(t *testing.T) {
	texts := luaFiles(t)
	for name, text := range texts {
		if name == guard {
			require.Equal(t, text, scripts.FenceGuard)
			continue
		}
		script := variables[name]
		require.NotNil(t, script, "no variable for %s.lua, or it is missing in this test", name)
		require.Equal(t, name, script.Name())
		require.Equal(t, text, script.Text())
	}
	require.Len(t, texts, len(variables)+1)

	// And each variable is named as its file.
	source, err := os.ReadFile("scripts.go")
	require.NoError(t, err)
	loads := regexp.MustCompile(`(?m)^\t(\w+)\s*= load\("(\w+)"\)$`).FindAllStringSubmatch(string(source), -1)
	require.Len(t, loads, len(variables))
	for _, load := range loads {
		words := strings.Split(load[2], "_")
		for i, word := range words {
			words[i] = strings.ToUpper(word[:1]) + word[1:]
		}
		require.Equal(t, strings.Join(words, ""), load[1])
	}
}

func TestHeaders_sayWhatTheBodiesDo(t *testing.T) {
	for name, text := range luaFiles(t) {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, faults(name, text))
		})
	}
}

// When memory is full Redis lets a script write whatever it likes after its first
// write, if that one takes no memory: HDEL and PEXPIRE do not.
func TestFiles_whatMustWorkWithoutMemoryBeginsWithAWriteThatTakesNone(t *testing.T) {
	texts := luaFiles(t)
	for name, first := range map[string]string{
		"reentrant_count":           "PEXPIRE",
		"reentrant_force":           "DEL",
		"reentrant_release":         "HDEL",
		"reentrant_release_receipt": "HDEL",
		"reentrant_renew":           "PEXPIRE",
		"rwlock_downgrade":          "PEXPIRE",
		"rwlock_force":              "DEL",
		"rwlock_hold_renew":         "PEXPIRE",
		"rwlock_prune":              "HDEL",
		"rwlock_read_release":       "HDEL",
		"rwlock_read_renew":         "PEXPIRE",
		"rwlock_read_withdraw":      "SREM",
		"rwlock_write_release":      "HDEL",
		"rwlock_write_withdraw":     "ZREM",
	} {
		_, body := split(texts[name])
		writes := regexp.MustCompile(`'(SET|DEL|PEXPIRE|HSET|HDEL|SADD|SREM|ZADD|ZREM|RENAME)'`).FindStringSubmatch(body)
		require.NotEmpty(t, writes, name)
		require.Equal(t, first, writes[1], name)
	}
}

var (
	entryLine = regexp.MustCompile(`^-- ((?:KEYS|ARGV)\[[^\]]+\]|[a-z]+)  *(\S.*)$`)
	moreLine  = regexp.MustCompile(`^--  +(\S.*)$`)
	useOf     = regexp.MustCompile(`\b(KEYS|ARGV)\[([^\]]+)\]`)
	bareUseOf = regexp.MustCompile(`(#|table\.remove\()?\b(KEYS|ARGV)\b(\[)?`)
	calls     = regexp.MustCompile(`\bredis\s*(?:\.\s*p?call\b|\[)`)
	// The command and its first arguments, as all scripts write them.
	call      = regexp.MustCompile(`\bredis\.p?call\('([A-Z]+)'(?:, (\w+(?:\[[^\]]*\])?)(?:, (\w+\[[^\]]*\]))?([,)])|\))`)
	expiry    = regexp.MustCompile(`(?m)(?:'PEXPIRE', [^,]+, (.*)\)$|'PX', ([^)]+)\))`)
	local     = regexp.MustCompile(`(?m)^\s*local ([\w, ]+?)\s*=\s*(.+)$`)
	declared  = regexp.MustCompile(`^KEYS\[[^\]]+\]$`)
	forbidden = regexp.MustCompile(`^#!|\b(?:cmsgpack|bit|struct)\b\s*\.|\bsetresp\b|\t|\r|[ ]\n|\S\z`)
)

// commands are those that scripts may call: how many keys they take first. all
// is for those of which every argument is a key; they may have one.
const all = -1

var commands = map[string]int{
	"PUBLISH": 0, "SPUBLISH": 0, "TIME": 0,
	"DEL": all, "EXISTS": all,
	"GET": 1, "SET": 1, "PTTL": 1, "PEXPIRE": 1,
	"HSET": 1, "HMGET": 1, "HDEL": 1, "HEXISTS": 1, "HGETALL": 1, "HGET": 1, "HINCRBY": 1, "HLEN": 1, "HSCAN": 1,
	"SADD": 1, "SREM": 1, "SISMEMBER": 1, "ZADD": 1, "ZREM": 1, "ZREVRANGE": 1, "ZREMRANGEBYSCORE": 1,
	"ZCARD": 1, "ZCOUNT": 1, "ZRANGE": 1, "ZRANGEBYSCORE": 1,
	"RENAME": 2,
}

// faults lists what is wrong with the text of lua/NAME.lua: everything about
// headers and keys that CONTRIBUTING.md asks of a script.
func faults(name, text string) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if f := forbidden.FindString(text); f != "" {
		fault("the text has %q", f)
	}

	header, body := split(text)
	entries := entriesOf(header)
	if !strings.HasPrefix(text, "-- "+name+".lua: ") {
		fault("the first line is not %q and what it is for", "-- "+name+".lua: ")
	}
	needed := []string{"returns", "twice"}
	if name != guard && !strings.HasSuffix(name, "_info") {
		needed = append(needed, "source")
	}
	for _, word := range needed {
		if entries[word] == "" {
			fault("the header has no line %q", word)
		}
	}

	// Keys and arguments: those of the header are those of the body.
	used := map[string]bool{}
	for _, use := range useOf.FindAllStringSubmatch(body, -1) {
		used[use[1]+"["+strings.ReplaceAll(use[2], " ", "")+"]"] = true
	}
	for use := range used {
		if entries[use] == "" {
			fault("%s is used but not in the header", use)
		}
	}
	for entry, says := range entries {
		// "…" is what the script does not use itself.
		if follows := strings.HasPrefix(says, "…"); strings.HasSuffix(entry, "]") && used[entry] == follows {
			fault("the header says %s %q, which the body does not bear out", entry, says)
		}
	}
	for _, use := range bareUseOf.FindAllStringSubmatch(body, -1) {
		if use[1] == "" && use[3] == "" {
			fault("%s is used as a whole, so nobody can tell what of it", use[2])
		}
	}

	// No script touches a key that is not declared.
	locals := localsOf(body)
	found := call.FindAllStringSubmatch(body, -1)
	if n := len(calls.FindAllString(body, -1)); n != len(found) || strings.Count(body, "redis.call")+strings.Count(body, "redis.pcall") != n {
		fault("%d of %d calls are written in a way that this test can read", len(found), n)
	}
	for _, c := range found {
		command, first, second, end := c[1], c[2], c[3], c[4]
		n, known := commands[command]
		key := first
		if l, ok := locals[first]; ok {
			key = l
		}
		switch {
		case !known:
			fault("%s is new: which of its arguments are keys?", command)
		case n != 0 && !declared.MatchString(key):
			fault("%s of %q, which is not declared in KEYS", command, first)
		case n == 2 && !declared.MatchString(second):
			fault("%s to %q, which is not declared in KEYS", command, second)
		case n == all && (second != "" || end != ")"):
			fault("%s of more than one key", command)
		}
	}

	// Durations say their unit.
	for _, m := range expiry.FindAllStringSubmatch(body, -1) {
		expression := m[1] + m[2]
		for name, value := range locals {
			if regexp.MustCompile(`\b` + name + `\b`).MatchString(expression) {
				expression += " " + value
			}
		}
		for _, use := range useOf.FindAllStringSubmatch(expression, -1) {
			arg := use[1] + "[" + strings.ReplaceAll(use[2], " ", "") + "]"
			if use[1] == "ARGV" && !strings.Contains(entries[arg], "milliseconds") {
				fault("%s is a duration and does not say milliseconds", arg)
			}
		}
	}
	for entry, says := range entries {
		duration := entry == "returns" || strings.HasPrefix(entry, "ARGV")
		duration = duration && regexp.MustCompile(`\b(lease|how long|retention|TTL|time)\b`).MatchString(says)
		if duration && !strings.Contains(says, "milliseconds") {
			fault("%s speaks of a duration and does not say milliseconds", entry)
		}
	}
	slices.Sort(faults)
	return faults
}

// split returns the lines of comment at the top, and the rest without comments.
func split(text string) (header []string, body string) {
	lines := strings.Split(text, "\n")
	n := 0
	for n < len(lines) && strings.HasPrefix(lines[n], "--") {
		n++
	}
	return lines[:n], regexp.MustCompile(`(?m)\s*--.*$`).ReplaceAllString(strings.Join(lines[n:], "\n"), "")
}

// entriesOf are the entries of a header by their first words.
func entriesOf(header []string) map[string]string {
	entries, last := map[string]string{}, ""
	for _, line := range header[min(1, len(header)):] {
		if m := entryLine.FindStringSubmatch(line); m != nil && (strings.HasSuffix(m[1], "]") || strings.HasPrefix(line[3+len(m[1]):], "  ")) {
			last = m[1]
			entries[last] = m[2]
		} else if m := moreLine.FindStringSubmatch(line); m != nil && last != "" {
			entries[last] += " " + m[1]
		} else {
			last = ""
		}
	}
	return entries
}

// localsOf are the values of those locals that are never assigned again.
func localsOf(body string) map[string]string {
	locals := map[string]string{}
	for _, l := range local.FindAllStringSubmatch(body, -1) {
		names, values := strings.Split(l[1], ", "), strings.Split(l[2], ", ")
		if len(names) != len(values) {
			names, values = names[:1], []string{l[2]}
		}
		for i, name := range names {
			if len(regexp.MustCompile(`(?m)\b`+name+`\b[\w, ]*=(?:[^=]|$)`).FindAllString(body, -1)) == 1 {
				locals[name] = values[i]
			}
		}
	}
	return locals
}

// good passes; what is wrong with the others is one change away from it.
const good = `-- good.lua: an example.
--
-- KEYS[1]  lock hash
-- KEYS[2]  counter
-- ARGV[1]  owner
-- ARGV[2]  lease,
--          milliseconds
--
-- returns  1 done
-- twice    harmless
-- source   our own

local counter, lease = KEYS[2], tonumber(ARGV[2])
redis.call('HSET', KEYS[1], ARGV[1], 1) -- not KEYS[3]
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), lease))
redis.call('SET', counter, redis.call('TIME')[1], 'PX', lease)
return redis.call('EXISTS', KEYS[1])
`

func TestHeaders_checkCanFail(t *testing.T) {
	require.Empty(t, faults("good", good))
	for _, c := range []struct{ old, new, fault string }{
		{"-- good.lua", "-- better.lua", "the first line"},
		{"-- KEYS[2]  counter\n", "", "KEYS[2] is used but not in the header"},
		{"-- ARGV[1]  owner\n", "-- ARGV[1]  owner\n-- ARGV[3]  spare\n", "the header says ARGV[3]"},
		{"ARGV[1]  owner", "ARGV[1]  … of the script that follows", "the header says ARGV[1]"},
		{"ARGV[1], 1)", "ARGV[3], 1)", "ARGV[3] is used but not in the header"},
		{"-- returns  1 done\n", "", `no line "returns"`},
		{"-- twice    harmless\n", "", `no line "twice"`},
		{"-- source   our own\n", "", `no line "source"`},
		{"-- twice    harmless\n", "-- twice    \n", `no line "twice"`},
		{"milliseconds", "seconds", "ARGV[2] is a duration and does not say milliseconds"},
		{"ARGV[2]  lease,\n--          milliseconds", "ARGV[2]  number", "ARGV[2] is a duration and does not say milliseconds"},
		{"1 done", "the rest of the TTL", "returns speaks of a duration"},
		{"'HSET', KEYS[1]", "'HSET', 'lock'", "calls are written in a way"},
		{"'HSET', KEYS[1]", "'HSET', ARGV[1]", `HSET of "ARGV[1]", which is not declared`},
		{"'HSET', KEYS[1]", "'HSET', KEYS[1] .. ':x'", "calls are written in a way"},
		{"'HSET', KEYS[1]", "'HSET', prefix", `HSET of "prefix", which is not declared`},
		{"KEYS[2], tonumber", "KEYS[2] .. ':x', tonumber", `SET of "counter", which is not declared`},
		{"redis.call('HSET'", "counter = 'x' redis.call('HSET'", `SET of "counter", which is not declared`},
		{"'EXISTS', KEYS[1])", "'EXISTS', KEYS[1], KEYS[2])", "EXISTS of more than one key"},
		{"'EXISTS', KEYS[1])", "'RENAME', KEYS[1], ARGV[1])", `RENAME to "ARGV[1]", which is not declared`},
		{"'EXISTS', KEYS[1])", "'TTL', KEYS[1])", "TTL is new"},
		{"'EXISTS', KEYS[1])", "unpack(KEYS))", "KEYS is used as a whole"},
		{"redis.call('EXISTS', KEYS[1])", `redis.call("EXISTS", KEYS[1])`, "calls are written in a way"},
		{"redis.call('EXISTS', KEYS[1])", "redis['call']('EXISTS', 'x')", "calls are written in a way"},
		{"return redis.call(", "local c = redis.call return c(", "calls are written in a way"},
		{"-- good.lua", "#!lua name=x\n-- good.lua", `"#!"`},
		{"\nreturn", "\nredis.setresp(3) return", `"setresp"`},
		{"tonumber(ARGV[2])", "cmsgpack.unpack(ARGV[2])", `"cmsgpack."`},
		{"tonumber(ARGV[2])", "bit.band(ARGV[2])", `"bit."`},
		{"tonumber(ARGV[2])", "struct.unpack(ARGV[2])", `"struct."`},
		{"\nreturn", "\n\treturn", `"\t"`},
		{"KEYS[1])\n", "KEYS[1]) \n", `" \n"`},
	} {
		t.Run(c.new, func(t *testing.T) {
			require.Contains(t, good, c.old)
			bad := faults("good", strings.Replace(good, c.old, c.new, 1))
			require.Contains(t, strings.Join(bad, "\n"), c.fault)
			require.NotEmpty(t, bad)
		})
	}
}
