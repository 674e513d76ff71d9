package explore_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/explore"
	"github.com/holdfast-go/holdfast/scripts"
)

// The steps of programs for a read-write lock.
var (
	read      = explore.Step{Command: explore.Command{Op: explore.Acquire, Ticks: lease, Mode: explore.Read | explore.Back}}
	readLong  = explore.Step{Command: explore.Command{Op: explore.Acquire, Ticks: 4, Mode: explore.Read | explore.Back}}
	readWait  = explore.Step{Command: explore.Command{Op: explore.Acquire, Ticks: lease, Mode: explore.Read | explore.Back | explore.Waits}}
	write     = explore.Step{Command: explore.Command{Op: explore.Acquire, Ticks: lease, Mode: explore.Write}}
	writeWait = explore.Step{Command: explore.Command{Op: explore.Acquire, Ticks: lease, Mode: explore.Write | explore.Back | explore.Waits}}
	rRenew    = explore.Step{Command: explore.Command{Op: explore.Renew, Ticks: lease, Mode: explore.Read}}
	rAsk      = explore.Step{Command: explore.Command{Op: explore.Renew, Ticks: 1, Mode: explore.Read}}
	wRenew    = explore.Step{Command: explore.Command{Op: explore.Renew, Ticks: lease, Mode: explore.Write}}
	rRelease  = explore.Step{Command: explore.Command{Op: explore.Release, Mode: explore.Read}}
	wRelease  = explore.Step{Command: explore.Command{Op: explore.Release, Mode: explore.Write}}
	wKeep     = explore.Step{Command: explore.Command{Op: explore.Release, Mode: explore.Write, Ticks: 1}}
	downgrade = explore.Step{Command: explore.Command{Op: explore.Convert, Ticks: lease, Mode: explore.Read}}
	wUp       = explore.Step{Command: explore.Command{Op: explore.Count, Ticks: lease, Mode: explore.Write}, By: 1}
	wDown     = explore.Step{Command: explore.Command{Op: explore.Count, Ticks: lease, Mode: explore.Write}, By: -1}
	pruneA    = explore.Step{Command: explore.Command{Op: explore.Prune, Owner: explore.Owner{Client: 0, N: 1}}}
	pruneB    = explore.Step{Command: explore.Command{Op: explore.Prune, Owner: explore.Owner{Client: 1, N: 1}}}
	rForce    = explore.Step{Command: explore.Command{Op: explore.Force, Mode: explore.Read}}
	wForce    = explore.Step{Command: explore.Command{Op: explore.Force, Mode: explore.Write}}
)

// An rwScenario is one for the read-write lock.
type rwScenario struct {
	name          string
	clients       []steps
	faults, ticks int
}

func (s *rwScenario) of() explore.Scenario {
	return explore.Scenario{Clients: s.clients, Faults: s.faults + *more, Ticks: s.ticks + *more, Sided: true}
}

var rwScenarios = []rwScenario{
	{"readers read together", []steps{{read, rRelease}, {read, rRelease}}, 2, 2},
	{"three readers", []steps{{read, rRelease}, {read, rRelease}, {read, rRelease}}, 1, 2},
	{"a reader and a writer", []steps{{read, rRelease}, {write, wRelease}}, 3, 2},
	{"two readers and a writer", []steps{{read, rRelease}, {read, rRelease}, {write, wRelease}}, 1, 2},
	{"two writers and a reader", []steps{{read, rRelease}, {write, wRelease}, {write, wRelease}}, 1, 2},
	{"a reader renews", []steps{{read, rRenew, rRenew, rRelease}, {write, wRelease}}, 1, 4},
	{"a short lease beside a long one", []steps{{read, rAsk, rRelease}, {readLong, rRenew, rRelease}}, 1, 4},
	{"a writer renews", []steps{{write, wRenew, wUp, wDown, wRelease}, {read, rRelease}}, 1, 3},
	{"dead readers are taken out", []steps{{read, rRenew}, {read, rRelease}, {pruneA, write, wRelease}}, 1, 3},
	{"a long lease that was given back", []steps{{read, rRenew, rRelease}, {readLong, rRelease, pruneA}, {write, wRelease}}, 1, 3},
	{"both are looked at", []steps{{read, rRenew}, {readLong}, {pruneA, pruneB, write}}, 1, 4},
	{"a downgrade", []steps{{write, downgrade, rRelease}, {read, rRelease}}, 2, 2},
	{"a downgrade before a writer", []steps{{write, downgrade, rRenew, rRelease}, {write, wRelease}}, 2, 3},
	{"a downgrade of nested holds", []steps{{write, wUp, wDown, downgrade, rRelease}, {write, wRelease}}, 1, 2},
	{"readers that wait have their turn", []steps{{readWait, rRelease}, {write, wRelease}, {writeWait, wRelease}}, 1, 2},
	{"writers that wait are let in", []steps{{readWait, rRelease, readWait, rRelease}, {writeWait, wRelease}}, 1, 2},
	{"a turn after a downgrade", []steps{{write, downgrade, rRelease}, {readWait, rRelease}, {writeWait, wRelease}}, 1, 1},
	{"a lock that stays taken", []steps{{write, wKeep}, {readWait, rRelease}, {write, wKeep}}, 1, 2},
	{"readers are forced out", []steps{{read, rRenew, rRelease}, {read, rRelease}, {rForce, wForce}}, 1, 2},
	{"a writer is forced out", []steps{{write, downgrade, rRelease}, {read, rRelease}, {wForce}}, 1, 2},
	{"nobody releases", []steps{{read}, {write}, {read, rRenew}}, 1, 3},
}

func TestExplore_everyScheduleOfTheReadWriteLock(t *testing.T) {
	var (
		mu    sync.Mutex
		total explore.Report
	)
	began := time.Now()
	t.Run("scenarios", func(t *testing.T) {
		for _, s := range rwScenarios {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				report, err := explore.Explore(explore.Rwlock{}, newMini(t), s.of())
				require.NoError(t, err)
				t.Logf("%+v in %v", report, time.Since(began).Round(time.Millisecond))
				mu.Lock()
				defer mu.Unlock()
				total.Add(report)
			})
		}
	})
	t.Logf("all: %+v in %v", total, time.Since(began).Round(time.Millisecond))
	if !t.Failed() {
		require.Greater(t, total.Schedules, uint64(100_000))
	}
}

// The real server's clock is not the model's, so those who wait are not walked through.
func TestWalk_theReadWriteLockOnARealServer(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	real := newReal(t)
	var total explore.Report
	for _, s := range rwScenarios {
		if slices.ContainsFunc(s.clients, func(program steps) bool {
			return slices.ContainsFunc(program, func(step explore.Step) bool {
				return step.Op == explore.Acquire && step.Mode&explore.Waits != 0
			})
		}) {
			continue
		}
		report, err := explore.Walk(explore.Rwlock{}, real, s.of(), walks/len(rwScenarios)+1, random)
		require.NoError(t, err, "%s, with the seed %d", s.name, seed)
		total.Add(report)
	}
	t.Logf("%+v", total)
}

// rwSpoiled are scripts of the read-write lock with a mistake.
var rwSpoiled = []struct {
	name     string
	script   *scripts.Script
	old, new string
	scenario string
	property string
}{
	{
		"a reader comes in beside a writer", scripts.RwlockReadAcquire,
		"elseif found[1] == 'write' then", "elseif false then",
		"a reader and a writer", "owners: a writer shares the lock",
	},
	{
		"a reader has no key of its own", scripts.RwlockReadAcquire,
		"redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])", "",
		"readers read together", "owners: the reader was told that it has the lock, and has not",
	},
	{
		"a short lease cuts a long one", scripts.RwlockReadAcquire,
		"if left < lease then", "if true then",
		"a short lease beside a long one", "TTL: it was lowered",
	},
	{
		"a repeat is held up by a writer that waits", scripts.RwlockReadAcquire,
		"if found[2] then\n  refused = nil -- it has the lock\nelseif ARGV[3]", "if ARGV[3]",
		"writers that wait are let in", "answer: it is other, 1m40s left, and should be mine",
	},
	{
		"a reader does not stand back", scripts.RwlockReadAcquire,
		"if rest > 0 then", "if false then",
		"writers that wait are let in", "answer: it is mine, and should be other",
	},
	{
		"a reader keeps its turn for ever", scripts.RwlockReadAcquire,
		"redis.pcall('SREM', KEYS[5], ARGV[4])", "",
		"readers that wait have their turn", "contents: they are",
	},
	{
		"a writer comes in beside readers", scripts.RwlockWriteAcquire,
		"if not mine and left ~= -2 then", "if not mine and left ~= -2 and mode ~= 'read' then",
		"a reader and a writer", "owners: a writer shares the lock",
	},
	{
		"a writer takes the turn of readers", scripts.RwlockWriteAcquire,
		"  left = redis.call('PTTL', KEYS[3])", "  left = -2",
		"readers that wait have their turn", "answer: it is mine, and should be other",
	},
	{
		"a writer does not say that it waits", scripts.RwlockWriteAcquire,
		"redis.pcall('ZADD', KEYS[2], now + tonumber(ARGV[4]), ARGV[3])", "",
		"writers that wait are let in", "contents: they are",
	},
	{
		"a reader's release frees the lock", scripts.RwlockReadRelease,
		"if rest == 1 then", "if true then",
		"readers read together", "owners: a command of another owner changed the lock",
	},
	{
		"a reader's release leaves its key", scripts.RwlockReadRelease,
		"  redis.call('DEL', KEYS[2])", "",
		"readers read together", "contents: they are",
	},
	{
		"a writer's release has no turn follow", scripts.RwlockWriteRelease,
		"redis.call('EXISTS', KEYS[2]) == 1", "false",
		"readers that wait have their turn", "contents: they are",
	},
	{
		"a writer's release of another's lock", scripts.RwlockWriteRelease,
		"if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then",
		"redis.call('HDEL', KEYS[1], ARGV[1])\nif redis.call('EXISTS', KEYS[1]) == 0 then",
		"two writers and a reader", "twice: the answer is mine, and to a repeat mine instead of other",
	},
	{
		"a downgrade forgets the hold's key", scripts.RwlockDowngrade,
		"    redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])", "",
		"a downgrade", "owners: the reader was told that it has the lock, and has not",
	},
	{
		"a downgrade leaves the writer", scripts.RwlockDowngrade,
		"redis.call('HDEL', KEYS[1], writer)", "",
		"a downgrade", "release: the owner still has the lock",
	},
	{
		"a downgrade makes a reader of nobody", scripts.RwlockDowngrade,
		"if not found[1] and not found[2] then", "if false then",
		"a downgrade", "",
	},
	{
		"a repeated downgrade is refused", scripts.RwlockDowngrade,
		"if not found[1] and not found[2] then", "if not found[1] then",
		"a downgrade", "twice: the answer is mine, and to a repeat other",
	},
	{
		"a renewal goes by the lock alone", scripts.RwlockReadRenew,
		"  elseif left == -2 then\n    verdicts[i] = 0\n", "  elseif false then\n",
		"a short lease beside a long one", "",
	},
	{
		"a renewal forgets the lock", scripts.RwlockReadRenew,
		"redis.call('PEXPIRE', KEYS[2 * i - 1], ARGV[n + i])", "",
		"a reader renews", "TTL: it is shorter than the lease",
	},
	{
		"a renewal forgets the hold", scripts.RwlockReadRenew,
		"redis.call('PEXPIRE', KEYS[2 * i], ARGV[n + i])", "",
		"a reader renews", "TTL: it is shorter than the lease",
	},
	{
		"a prune takes the living out", scripts.RwlockPrune,
		"if ends == -2 then", "if true then",
		"dead readers are taken out", "prune: a reader was taken out whose hold has not ended",
	},
	{
		"a prune lowers the TTL below a hold that it did not look at", scripts.RwlockPrune,
		"elseif rest == live and last < endless then", "elseif live > 0 then",
		"both are looked at", "TTL: the lock ends before the hold of B:1",
	},
	{
		"a prune leaves the lock of nobody", scripts.RwlockPrune,
		"  redis.call('DEL', KEYS[1])\nelseif", "  redis.call('PTTL', KEYS[1])\nelseif",
		"both are looked at", "owners: the lock is nobody's",
	},
	{
		"force opens a lock of the other mode", scripts.RwlockForce,
		"if mode ~= ARGV[1] then", "if not mode then",
		"readers are forced out", "",
	},
}

func TestExplore_findsSpoiledScriptsOfTheReadWriteLock(t *testing.T) {
	for _, m := range rwSpoiled {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			i := slices.IndexFunc(rwScenarios, func(s rwScenario) bool { return s.name == m.scenario })
			kind := explore.Rwlock{Instead: spoil(t, m.script, m.old, m.new)}
			_, err := explore.Explore(kind, newMini(t), rwScenarios[i].of())
			v := violation(t, err)
			t.Logf("%v", v)
			require.Contains(t, v.Property.Error(), m.property)
			require.NotEmpty(t, v.Schedule)
		})
	}
}

// A model that has the mistakes of a script too, and knows nothing of a single run.
type rwBelieving struct {
	explore.Rwlock
	step func(k explore.Rwlock, l explore.Ledger, now int, c explore.Command) (explore.Ledger, explore.Answer)
}

func (k rwBelieving) Check(*explore.Run) error { return nil }

func (k rwBelieving) Step(l explore.Ledger, now int, c explore.Command) (explore.Ledger, explore.Answer) {
	return k.step(k.Rwlock, l, now, c)
}

// Only schedules show what scripts and model have wrong together.
func TestExplore_findsWhatScriptAndModelOfTheReadWriteLockHaveWrong(t *testing.T) {
	for _, m := range []struct {
		name     string
		script   *scripts.Script
		old, new string
		step     func(k explore.Rwlock, l explore.Ledger, now int, c explore.Command) (explore.Ledger, explore.Answer)
		scenario string
		property string
	}{
		{
			"the last hold's release is anybody's", scripts.RwlockReadRelease, "if rest == 1 then", "if true then",
			func(k explore.Rwlock, l explore.Ledger, now int, c explore.Command) (explore.Ledger, explore.Answer) {
				next, a := k.Step(l, now, c)
				if c.Op == explore.Release && c.Mode == explore.Read && a.Verdict == explore.Mine && next.Mode != 0 {
					next, _ = k.Step(next, now, explore.Command{Op: explore.Force, Mode: next.Mode})
				}
				return next, a
			},
			"readers read together", "exclusion: ",
		},
		{
			"a prune takes the living out", scripts.RwlockPrune, "if ends == -2 then", "if true then",
			func(k explore.Rwlock, l explore.Ledger, now int, c explore.Command) (explore.Ledger, explore.Answer) {
				if h := l.Reads[c.Owner.Client][max(c.Owner.N, 1)-1]; c.Op == explore.Prune && h.In && int(l.Until) > now {
					l.Reads[c.Owner.Client][c.Owner.N-1].Until = 0
					next, a := k.Step(l, now, c)
					next.Reads[c.Owner.Client][c.Owner.N-1].Until = h.Until
					return next, a
				}
				return k.Step(l, now, c)
			},
			"dead readers are taken out", "exclusion: A:1 believes to hold the lock, and does not have it",
		},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			i := slices.IndexFunc(rwScenarios, func(s rwScenario) bool { return s.name == m.scenario })
			kind := explore.Rwlock{Instead: spoil(t, m.script, m.old, m.new)}
			_, err := explore.Explore(rwBelieving{kind, m.step}, newMini(t), rwScenarios[i].of())
			v := violation(t, err)
			t.Logf("%v", v)
			require.Contains(t, v.Property.Error(), m.property)
		})
	}
}
