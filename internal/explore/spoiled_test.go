package explore_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/explore"
	"github.com/holdfast-go/holdfast/scripts"
)

// spoiled are scripts with a mistake. Each breaks the property first in one of the
// scenarios.
var spoiled = []struct {
	name     string
	script   *scripts.Script
	old, new string
	scenario string
	property string
}{
	{
		"acquire sets no TTL", scripts.ReentrantAcquire,
		"  redis.call('PEXPIRE', KEYS[1], ARGV[2])\n  return -2", "  return -2",
		"two take turns", "TTL: lock has none",
	},
	{
		"acquire looks for no owner", scripts.ReentrantAcquire,
		"if not found[1] then\n  return left\nend", "redis.call('HSET', KEYS[1], ARGV[1], 1)",
		"two take turns", "owners: the lock has [A:1=1 B:1=1]",
	},
	{
		"acquire tells everybody that the lock is theirs", scripts.ReentrantAcquire,
		"  return left", "  return -2",
		"two take turns", "owners: the owner was told that it has the lock, and has not",
	},
	{
		"acquire again counts one more", scripts.ReentrantAcquire,
		"if left < tonumber(ARGV[2]) then", "redis.call('HINCRBY', KEYS[1], ARGV[1], 1)\nif left < tonumber(ARGV[2]) then",
		"two take turns", "twice: a repeat changed something",
	},
	{
		"acquire again is refused", scripts.ReentrantAcquire,
		"if not found[1] then", "if true then",
		"two take turns", "twice: the answer is mine, and to a repeat other, 3m20s left instead of mine",
	},
	{
		"acquire again lowers the TTL", scripts.ReentrantAcquire,
		"if left < tonumber(ARGV[2]) then", "if true then",
		"renewals of other lengths", "TTL: it was lowered",
	},
	{
		"acquire again does not lift the TTL", scripts.ReentrantAcquire,
		"if left < tonumber(ARGV[2]) then", "if false then",
		"two take turns", "TTL: it is shorter than the lease",
	},
	{
		"acquire says that less time is left", scripts.ReentrantAcquire,
		"  return left\n", "  return left - 1000\n",
		"two take turns", "answer: it is other, 3m19s left, and should be other, 3m20s left",
	},
	{
		"fenced acquire sets no TTL", scripts.ReentrantAcquireFenced,
		"  redis.call('HSET', KEYS[1], ARGV[1], 1)\n  redis.call('PEXPIRE', KEYS[1], ARGV[2])", "  redis.call('HSET', KEYS[1], ARGV[1], 1)",
		"tokens", "TTL: lock has none",
	},
	{
		"fenced acquire again mints", scripts.ReentrantAcquireFenced,
		"if last and #last <= 16 and not string.find(last, '%D') and (tonumber(last) or 0) > 0 then", "if false then",
		"tokens", "twice: the answer is mine, token 1000000 × 1, and to a repeat mine, token 1000001 × 1 instead",
	},
	{
		"fenced acquire again mints a while later", scripts.ReentrantAcquireFenced,
		"if last and #last <= 16 and not string.find(last, '%D') and (tonumber(last) or 0) > 0 then", "if last and left == tonumber(ARGV[2]) then",
		"tokens", "tokens: the owner had 1000000, and gets 101000000 when it asks again",
	},
	{
		"fenced acquire again lowers the TTL", scripts.ReentrantAcquireFenced,
		"  if left < tonumber(ARGV[2]) then", "  if true then",
		"the counter is lost", "TTL: it was lowered",
	},
	{
		"fenced acquire counts only", scripts.ReentrantAcquireFenced,
		"local first = time[1] .. string.sub('00000' .. time[2], -6)", "local first = '1'",
		"the counter is lost", "answer: it is mine, token 1 × 1, and should be mine, token 1000000 × 1",
	},
	{
		"fenced acquire goes by the clock only", scripts.ReentrantAcquireFenced,
		"if before >= now then", "if false then",
		"tokens ahead of the clock", "answer: it is mine, token 1000000 × 3, and should be mine, token 5000000000000001 × 1",
	},
	{
		"fenced acquire takes a block and counts one", scripts.ReentrantAcquireFenced,
		"now + block - 1", "now",
		"blocks of tokens", "twice: the answer is mine, token 1000000 × 3, and to a repeat mine, token 1000000 × 1",
	},
	{
		"fenced acquire gives the last token to the next", scripts.ReentrantAcquireFenced,
		"'%.0f', before + 1", "'%.0f', before",
		"tokens ahead of the clock", "answer: it is mine, token 5000000000000000 × 1",
	},
	{
		"fenced acquire keeps the counter for ever", scripts.ReentrantAcquireFenced,
		"  redis.call('PEXPIRE', KEYS[2], ARGV[4])", "  local _",
		"tokens", "TTL: token has none",
	},
	{
		"fenced acquire gives Java's counter a TTL", scripts.ReentrantAcquireFenced,
		" and redis.call('PTTL', KEYS[2]) ~= -1", "",
		"tokens of Java", "contents: they are",
	},
	{
		"count creates", scripts.ReentrantCount,
		"if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then\n  return -redis.call('EXISTS', KEYS[1])\nend", "",
		"nested holds", "creation: the lock was nobody's, and no acquire created it",
	},
	{
		"count adds", scripts.ReentrantCount,
		"redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])", "redis.call('HINCRBY', KEYS[1], ARGV[1], 1)",
		"nested holds", "twice: a repeat changed something",
	},
	{
		"count lifts the TTL", scripts.ReentrantCount,
		"left < 0 and ARGV[3] or math.max(left, 1)", "ARGV[3]",
		"nested holds", "contents: they are lock={A:1=2} until 3",
	},
	{
		"count lowers the TTL", scripts.ReentrantCount,
		"math.max(left, 1)", "math.min(left, 150000)",
		"nested holds", "TTL: it was lowered",
	},
	{
		"renew lowers the TTL", scripts.ReentrantRenew,
		"if redis.call('PTTL', KEYS[i]) < tonumber(ARGV[n + i]) then", "if true then",
		"renewals of other lengths", "TTL: it was lowered",
	},
	{
		"renew does nothing", scripts.ReentrantRenew,
		"redis.call('PEXPIRE', KEYS[i], ARGV[n + i])", "",
		"a holder renews", "TTL: it is shorter than the lease",
	},
	{
		"renew creates", scripts.ReentrantRenew,
		"elseif mine == 0 then\n    verdicts[i] = -redis.call('EXISTS', KEYS[i])", "elseif redis.call('HSETNX', KEYS[i], ARGV[i], 1) == 2 then",
		"a holder renews", "creation: the lock was nobody's, and no acquire created it",
	},
	{
		"renew looks for no owner", scripts.ReentrantRenew,
		"elseif mine == 0 then", "elseif redis.call('EXISTS', KEYS[i]) == 0 then",
		"a holder renews", "owners: the owner was told that it has the lock, and has not",
	},
	{
		"release looks for no owner", scripts.ReentrantRelease,
		"redis.call('HDEL', KEYS[1], ARGV[1])", "redis.call('DEL', KEYS[1])",
		"two take turns", "owners: a command of another owner changed the lock",
	},
	{
		"release does nothing", scripts.ReentrantRelease,
		"redis.call('HDEL', KEYS[1], ARGV[1])", "redis.call('HEXISTS', KEYS[1], ARGV[1])",
		"two take turns", "release: the owner still has the lock",
	},
	{
		"release gives back one hold", scripts.ReentrantRelease,
		"if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then",
		"if redis.call('HGET', KEYS[1], ARGV[1]) == '2' then\n  redis.call('HSET', KEYS[1], ARGV[1], 1)\n  return 1\nend\nif redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then",
		"two nest", "release: the owner still has the lock",
	},
	{
		"release again keeps the lock longer", scripts.ReentrantRelease,
		"  return -redis.call('EXISTS', KEYS[1])",
		"  if tonumber(ARGV[4]) > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end\n  return -redis.call('EXISTS', KEYS[1])",
		"kept for a while", "refusal: the command was refused, and changed something",
	},
	{
		"release keeps the owner's own field", scripts.ReentrantRelease,
		"ARGV[1] .. ':released'", "ARGV[1]",
		"kept for a while", "release: the owner still has the lock",
	},
	{
		"release keeps the lock for ever", scripts.ReentrantRelease,
		"  redis.call('PEXPIRE', KEYS[1], ARGV[4])\n", "",
		"kept for a while", "TTL: lock has none",
	},
	{
		"release with a receipt looks for no owner", scripts.ReentrantReleaseReceipt,
		"redis.call('HDEL', KEYS[1], ARGV[1])", "redis.call('DEL', KEYS[1])",
		"receipts", "owners: a command of another owner changed the lock",
	},
	{
		"release writes no receipt", scripts.ReentrantReleaseReceipt,
		"redis.call('SET', KEYS[2], ARGV[5], 'PX', ARGV[6])", "",
		"receipts", "twice: the answer is mine, and to a repeat gone instead of mine",
	},
	{
		"release writes a receipt for ever", scripts.ReentrantReleaseReceipt,
		", 'PX', ARGV[6]", "",
		"receipts", "TTL: receipt:",
	},
	{
		"release believes any receipt", scripts.ReentrantReleaseReceipt,
		"if last >= tonumber(ARGV[5]) then", "if last > 0 then",
		"receipts", "answer: it is mine, and should be gone",
	},
	{
		"release overwrites a higher receipt", scripts.ReentrantReleaseReceipt,
		"if last < tonumber(ARGV[5]) then", "if true then",
		"receipts", "contents: they are",
	},
	{
		"force leaves it", scripts.ReentrantForce,
		"redis.call('DEL', KEYS[1])", "redis.call('EXISTS', KEYS[1])",
		"forced open", "twice: ",
	},
}

func TestExplore_findsEachSpoiledScript(t *testing.T) {
	for _, m := range spoiled {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := named(m.scenario)
			s.kind.Instead = spoil(t, m.script, m.old, m.new)
			_, err := explore.Explore(s.kind, newMini(t), s.of())
			v := violation(t, err)
			t.Logf("%v", v)
			require.Contains(t, v.Property.Error(), m.property)
			require.NotEmpty(t, v.Schedule)
		})
	}
}

// believing is a model that has the mistakes of a script too, and knows nothing of
// a single run: only schedules show that something is wrong.
type believing struct {
	explore.Reentrant
	step func(k explore.Reentrant, b explore.Books, now int, c explore.Command) (explore.Books, explore.Answer)
}

func (k believing) Check(*explore.Run) error { return nil }

func (k believing) Step(b explore.Books, now int, c explore.Command) (explore.Books, explore.Answer) {
	return k.step(k.Reentrant, b, now, c)
}

func TestExplore_findsWhatScriptAndModelHaveWrong(t *testing.T) {
	for _, m := range []struct {
		name     string
		script   *scripts.Script
		old, new string
		step     func(k explore.Reentrant, b explore.Books, now int, c explore.Command) (explore.Books, explore.Answer)
		scenario string
		property string
	}{
		{
			"release looks for no owner", scripts.ReentrantRelease,
			"redis.call('HDEL', KEYS[1], ARGV[1])", "redis.call('DEL', KEYS[1])",
			func(k explore.Reentrant, b explore.Books, now int, c explore.Command) (explore.Books, explore.Answer) {
				if c.Op == explore.Release {
					c.Op = explore.Force
				}
				return k.Step(b, now, c)
			},
			"two take turns", "exclusion: B:1 believes to hold the lock, and does not have it",
		},
		{
			"acquire takes half a lease", scripts.ReentrantAcquire,
			"ARGV[2])", "ARGV[2] / 2)",
			func(k explore.Reentrant, b explore.Books, now int, c explore.Command) (explore.Books, explore.Answer) {
				if c.Op == explore.Acquire {
					c.Ticks /= 2
				}
				return k.Step(b, now, c)
			},
			"two take turns", "exclusion: A:1 believes to hold the lock, and does not have it",
		},
		{
			"tokens begin again when the counter is lost", scripts.ReentrantAcquireFenced,
			"local first = time[1] .. string.sub('00000' .. time[2], -6)\nlocal now = tonumber(first)\nlocal block = tonumber(ARGV[3])", "local first, now, block = '1', 1, 1",
			func(k explore.Reentrant, b explore.Books, now int, c explore.Command) (explore.Books, explore.Answer) {
				next, a := k.Step(b, now, c)
				if a.Token == 0 || next.Token == b.Token {
					return next, a
				}
				fresh := uint64(1)
				if b.Token > 0 && (b.Kept == 0 || int(b.Kept) > now) {
					fresh = b.Token + 1
				}
				next.Token, a.Token, a.Block = fresh, fresh, 1
				return next, a
			},
			"the counter is lost", "tokens: ",
		},
		{
			"release spares an owner that was released before", scripts.ReentrantReleaseReceipt,
			"if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then", "if last >= tonumber(ARGV[5]) or redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then",
			func(k explore.Reentrant, b explore.Books, now int, c explore.Command) (explore.Books, explore.Answer) {
				if r := b.Receipts[c.Owner.Client]; c.Op == explore.Release && r.N >= c.Owner.N && int(r.Until) > now {
					return b, explore.Answer{Verdict: explore.Mine}
				}
				return k.Step(b, now, c)
			},
			"receipts", "left over: B:1 has the lock, and nobody knows",
		},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := named(m.scenario)
			s.kind.Instead = spoil(t, m.script, m.old, m.new)
			_, err := explore.Explore(believing{s.kind, m.step}, newMini(t), s.of())
			v := violation(t, err)
			t.Logf("%v", v)
			require.Contains(t, v.Property.Error(), m.property)
		})
	}
}

func TestWalk_findsASpoiledScript(t *testing.T) {
	s := named("nested holds")
	s.kind.Instead = spoil(t, scripts.ReentrantCount, "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])", "redis.call('HINCRBY', KEYS[1], ARGV[1], 1)")
	_, err := explore.Walk(s.kind, newReal(t), s.of(), walks, rand.New(rand.NewPCG(1, 1)))
	v := violation(t, err)
	t.Logf("%v", v)
	require.Contains(t, v.Property.Error(), "twice: a repeat changed something")
	require.NotEmpty(t, v.Schedule)
}

// spoil is the script with a mistake in it.
func spoil(t *testing.T, s *scripts.Script, old, with string) map[*scripts.Script]*scripts.Script {
	t.Helper()
	require.Contains(t, s.Text(), old)
	return map[*scripts.Script]*scripts.Script{s: scripts.New(s.Name(), strings.ReplaceAll(s.Text(), old, with))}
}

func named(name string) scenario {
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
	return scenarios[i]
}

func violation(t *testing.T, err error) *explore.Violation {
	t.Helper()
	var v *explore.Violation
	require.True(t, errors.As(err, &v), "%v", err)
	return v
}
