package explore_test

import (
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/explore"
)

const (
	lease = 2     // ticks
	ahead = 5e15  // a token counter that no clock has reached
	long  = 100   // ticks that nothing lives to see the end of
	walks = 3_000 // schedules on a real server
)

// The steps of programs.
var (
	acquire = explore.Step{Command: explore.Command{Op: explore.Acquire, Ticks: lease}}
	fenced  = explore.Step{Command: explore.Command{Op: explore.Acquire, Ticks: lease, Mode: explore.Fenced, Block: 1}}
	block   = explore.Step{Command: explore.Command{Op: explore.Acquire, Ticks: lease, Mode: explore.Fenced, Block: 3}}
	up      = explore.Step{Command: explore.Command{Op: explore.Count, Ticks: lease}, By: 1}
	down    = explore.Step{Command: explore.Command{Op: explore.Count, Ticks: lease}, By: -1}
	renew   = explore.Step{Command: explore.Command{Op: explore.Renew, Ticks: lease}}
	ask     = explore.Step{Command: explore.Command{Op: explore.Renew, Ticks: 1}} // shorter than what is there
	extend  = explore.Step{Command: explore.Command{Op: explore.Renew, Ticks: 3}}
	release = explore.Step{Command: explore.Command{Op: explore.Release}}
	keep    = explore.Step{Command: explore.Command{Op: explore.Release, Ticks: 1}}
	receipt = explore.Step{Command: explore.Command{Op: explore.Release, Mode: explore.Receipt}}
	stay    = explore.Step{Command: explore.Command{Op: explore.Release, Mode: explore.Receipt, Ticks: 1}}
	force   = explore.Step{Command: explore.Command{Op: explore.Force}}
)

var more = flag.Int("more", 0, "how many faults and ticks more each scenario has; 1 takes a minute")

type steps = []explore.Step

// A scenario is one for the reentrant lock.
type scenario struct {
	name          string
	clients       []steps
	faults, ticks int
	kind          explore.Reentrant
}

func (s *scenario) of() explore.Scenario {
	sc := explore.Scenario{Clients: s.clients, Faults: s.faults + *more, Ticks: s.ticks + *more}
	for _, program := range s.clients {
		for _, step := range program {
			if step.Op == explore.Release && step.Mode == explore.Receipt {
				sc.Receipts, sc.Sweep.Mode = true, explore.Receipt
			}
		}
	}
	return sc
}

var (
	usual   = explore.Reentrant{Retention: long, Memory: long}
	forever = explore.Reentrant{Retention: -1, Memory: long}
	forgets = explore.Reentrant{Retention: 2, Memory: 1}
	leads   = explore.Reentrant{Retention: long, Memory: long, First: explore.Books{Token: ahead, Kept: long}}
	javas   = explore.Reentrant{Retention: long, Memory: long, First: explore.Books{Token: 7}} // without a TTL
)

var scenarios = []scenario{
	{"two take turns", []steps{{acquire, release}, {acquire, release}}, 3, 2, usual},
	{"three take turns", []steps{{acquire, release}, {acquire, release}, {acquire, release}}, 1, 2, usual},
	{"nested holds", []steps{{acquire, up, down, release}, {acquire, release}}, 2, 2, usual},
	{"two nest", []steps{{acquire, up, release}, {acquire, up, release}}, 2, 2, usual},
	{"a holder renews", []steps{{acquire, renew, renew, release}, {acquire, release}}, 1, 4, usual},
	{"renewals of other lengths", []steps{{acquire, ask, extend, release}, {acquire, release}}, 1, 4, usual},
	{"nested and renewed", []steps{{acquire, up, renew, release}, {acquire, renew, release}}, 1, 3, usual},
	{"one owner after another", []steps{{acquire, release, acquire, release}, {acquire, release}}, 2, 2, usual},
	{"kept for a while", []steps{{acquire, up, keep}, {acquire, keep}}, 2, 2, usual},
	{"receipts", []steps{{acquire, receipt, acquire, receipt}, {acquire, receipt}}, 1, 3, usual},
	{"receipts forgotten", []steps{{acquire, receipt, acquire, stay}, {acquire, receipt}}, 1, 3, forgets},
	{"kept, with receipts", []steps{{acquire, renew, stay}, {acquire, stay}}, 2, 2, usual},
	{"tokens", []steps{{fenced, release, fenced, release}, {fenced, release}}, 1, 3, usual},
	{"three want tokens", []steps{{fenced, release}, {fenced, release}, {fenced, release}}, 1, 2, forever},
	{"blocks of tokens", []steps{{block, renew, release}, {block, up, release}}, 2, 2, usual},
	{"tokens ahead of the clock", []steps{{block, renew, release}, {fenced, keep, block, release}}, 1, 3, leads},
	{"tokens of Java", []steps{{fenced, release}, {block, release, fenced, release}}, 1, 2, javas},
	{"the counter is lost", []steps{{fenced, extend, extend, release}, {block, release}}, 1, 3, forgets},
	{"plain and fenced", []steps{{acquire, up, release}, {fenced, receipt, acquire, receipt}}, 1, 2, usual},
	{"forced open", []steps{{acquire, up, down, release}, {acquire, release}, {force}}, 1, 2, usual},
	{"forced open twice", []steps{{fenced, renew, receipt}, {block, stay}, {force, force}}, 1, 1, usual},
	{"holders that never release", []steps{{acquire, up}, {acquire, renew}, {acquire, release}}, 1, 3, usual},
}

func TestExplore_everyScheduleOfEveryScenario(t *testing.T) {
	var (
		mu    sync.Mutex
		total explore.Report
	)
	began := time.Now()
	t.Run("scenarios", func(t *testing.T) {
		for _, s := range scenarios {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				report, err := explore.Explore(s.kind, newMini(t), s.of())
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

// The scripts do on a real server what they do on miniredis: the model says what
// that is.
func TestWalk_aRealServer(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	began := time.Now()
	real := newReal(t)
	var total explore.Report
	for _, s := range scenarios {
		// The real clock is not the model's: tokens are to be ahead of it.
		if s.kind.First.Token < ahead {
			s.kind.First.Token = ahead
			if s.kind.First.Kept == 0 && s.kind.Retention >= 0 {
				s.kind.First.Kept = long
			}
		}
		s.kind.Retention = max(s.kind.Retention, long)
		report, err := explore.Walk(s.kind, real, s.of(), walks/len(scenarios)+1, random)
		require.NoError(t, err, "%s, with the seed %d", s.name, seed)
		total.Add(report)
	}
	t.Logf("%+v in %v", total, time.Since(began).Round(time.Millisecond))
}
