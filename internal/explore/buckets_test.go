package explore_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/explore"
	"github.com/holdfast-go/holdfast/scripts"
)

func buy(order string, bucket int, units int64, ticks int) explore.StockCommand {
	return explore.StockCommand{Op: explore.Buy, Order: order, Bucket: bucket, Units: units, Ticks: ticks}
}

func in(bucket int, c explore.StockCommand) explore.StockCommand {
	c.Bucket, c.Buyer = bucket, ""
	return c
}

func move(from int, units int64) explore.StockCommand {
	return explore.StockCommand{Op: explore.Move, Bucket: from, Units: units}
}

func give(from int, units int64) explore.StockCommand {
	return explore.StockCommand{Op: explore.Give, Bucket: from, Units: units}
}

var finish = explore.StockCommand{Op: explore.Finish}

var bucketsScenarios = map[string]explore.BucketsScenario{
	"two buyers, a transfer and an expiry": {
		Units: [2]int64{0, 1}, Clients: []program{{buy("a", 0, 1, 1)}, {buy("b", 1, 1, 2)}}, Faults: 2, Ticks: 1, Retention: long, Looks: 2, Tries: 2,
	},
	"two buyers, an expiry and a resize": {
		Units: [2]int64{0, 1}, Clients: []program{{in(1, take("x", 1, 1)), buy("a", 0, 1, 2)}, {move(1, 1), buy("b", 1, 1, 1)}}, Ticks: 1, Retention: long, Looks: 2, Tries: 2,
	},
	"two buyers whose units are in the other one's bucket": {
		Units: [2]int64{1, 1}, Clients: []program{{buy("a", 0, 2, 2)}, {buy("b", 1, 2, 2)}}, Faults: 1, Retention: long, Looks: 2, Tries: 2,
	},
	"one order from two processes across a resize": {
		Units: [2]int64{1, 0}, Clients: []program{{buy("a", 0, 1, 2), in(0, to(confirm, "a"))}, {buy("a", 0, 1, 2)}, {move(0, 1)}}, Faults: 1, Retention: long, Looks: 1, Tries: 2,
	},
	"transfers in a row, and late copies": {
		Units: [2]int64{4, 0}, Clients: []program{{move(0, 1), move(0, 1), move(0, 1)}}, Faults: 3, Ticks: 1, Retention: long,
	},
	"transfers there and back, and late copies": {
		Units: [2]int64{2, 0}, Clients: []program{{move(0, 2), move(1, 1)}, {move(0, 1)}}, Faults: 2, Ticks: 1, Retention: long,
	},
	"two processes finish what a third began": {
		Units: [2]int64{2, 0}, Clients: []program{{finish, give(0, 1)}, {finish}, {give(0, 2)}}, Faults: 2, Ticks: 1, Retention: long,
	},
	"a unit that moves while it is looked for": {
		Units: [2]int64{1, 0}, Clients: []program{{buy("a", 0, 1, 2)}, {move(0, 1), move(1, 1)}}, Ticks: 1, Retention: long, Looks: 3, Tries: 3,
	},
	"units that come on sale while they are looked for": {
		Units: [2]int64{1, 1}, Clients: []program{
			{buy("a", 0, 1, 2)},
			{in(0, take("x", 1, 2)), in(0, to(cancel, "x")), in(1, take("y", 1, 2)), in(1, to(cancel, "y")), in(0, take("z", 1, 2)), in(0, to(cancel, "z")), in(1, take("w", 1, 2))},
		}, Retention: long, Looks: 4, Tries: 2,
	},
	"a buyer who has asked before": {
		Units: [2]int64{2, 1}, Clients: []program{
			{buy("a", 0, 1, 2), buy("b", 0, 1, 2)},
			{in(0, take("x", 1, 2)), in(0, take("y", 1, 2)), in(0, to(cancel, "x")), in(0, to(cancel, "y")), in(1, take("w", 1, 2))},
		}, Retention: long, Looks: 3, Tries: 2,
	},
	"baskets": {
		Units: [2]int64{0, 1}, Clients: []program{{in(1, tentative("t", 1)), in(1, to(explore.GiveBack, "t"))}, {buy("a", 0, 1, 2)}}, Faults: 1, Ticks: 1, Retention: long, Looks: 2, Tries: 2,
	},
	"a delivery while somebody looks": {
		Units: [2]int64{0, 0}, Clients: []program{{in(1, deliver)}, {buy("a", 0, 1, 2)}, {move(1, 1)}}, Faults: 1, Retention: long, Looks: 2, Tries: 2,
	},
	"half of the units": {
		Units: [2]int64{0, 4}, Half: true, Clients: []program{{buy("a", 0, 1, 1), in(0, to(cancel, "a"))}, {buy("b", 1, 2, 2)}}, Faults: 1, Ticks: 1, Retention: long, Looks: 1, Tries: 2,
	},
}

func TestExploreBuckets_everyScheduleOfEveryScenario(t *testing.T) {
	var (
		mu    sync.Mutex
		total explore.Report
	)
	began := time.Now()
	t.Run("scenarios", func(t *testing.T) {
		for name, sc := range bucketsScenarios {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				sc.Faults += *more
				report, err := explore.Buckets(newMini(t), sc)
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

// spoiledBuckets are scripts with a mistake, each found in one of the scenarios.
var spoiledBuckets = []struct {
	name     string
	script   *scripts.Script
	old, new string
	scenario string
	property string
}{
	{"take looks at no number", scripts.StockTake, "if not last or tonumber(number) > tonumber(last) then", "if true then", "transfers in a row, and late copies", "twice: "},
	{"take takes the last one again", scripts.StockTake, "tonumber(number) > tonumber(last)", "tonumber(number) >= tonumber(last)", "transfers in a row, and late copies", "twice: "},
	{"take takes each but the last one", scripts.StockTake, "tonumber(number) > tonumber(last)", "tonumber(number) ~= tonumber(last)", "transfers in a row, and late copies", "sums: "},
	{"take remembers no number", scripts.StockTake, "redis.call('HSET', totals, 'from:' .. from, number)", "", "transfers in a row, and late copies", "twice: "},
	{"take counts nothing", scripts.StockTake, "redis.call('HINCRBY', totals, 'taken', units)", "", "transfers in a row, and late copies", "sums: "},
	{"take puts nothing on sale", scripts.StockTake, "restock(tonumber(units))", "", "transfers in a row, and late copies", "sums: "},
	{"take takes what others took", scripts.StockTake, "'from:' .. from)", "'from:x')", "transfers in a row, and late copies", "twice: "},
	{"reserve takes nothing in", scripts.StockReserve, "accept(ARGV[5])", "", "two buyers, a transfer and an expiry", "answer: "},
	{"reserve takes in again", scripts.StockReserve, "if not last or tonumber(number) > tonumber(last) then", "if true then", "two buyers, a transfer and an expiry", "twice: "},
	{"arrived looks at no number", scripts.StockArrived, "if number ~= ARGV[3] then", "if not number then", "transfers in a row, and late copies", "sums: "},
	{"arrived leaves the sum", scripts.StockArrived, "redis.call('HINCRBY', KEYS[1], 'transit', '-' .. units)", "", "transfers in a row, and late copies", "sums: "},
	{"arrived leaves the transfer", scripts.StockArrived, "redis.call('HDEL', KEYS[1], 'to:' .. ARGV[2])", "", "transfers in a row, and late copies", "twice: "},
	{"give takes nothing off sale", scripts.StockGive, "redis.call('HINCRBY', totals, 'free', plain(-units)) == 0", "false", "transfers in a row, and late copies", "sums: "},
	{"give sends again", scripts.StockGive, "if open then", "if false then", "transfers in a row, and late copies", "twice: "},
	{"give counts nothing", scripts.StockGive, "redis.call('HINCRBY', totals, 'given', plain(units))", "", "transfers in a row, and late copies", "sums: "},
	{"give goes by the clock only", scripts.StockGive, "math.max(sent + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))", "tonumber(time[1]) * 1000000 + tonumber(time[2])", "transfers in a row, and late copies", "give: number"},
	{"give sends more than there is", scripts.StockGive, "math.min(free, need)", "need", "two processes finish what a third began", "give: "},
	{"give sweeps nothing", scripts.StockGive, "free < need and sweep(100) > 0", "false", "two buyers, an expiry and a resize", "give: nothing"},
	{"give sends half unasked", scripts.StockGive, "if ARGV[7] == '1' then", "if true then", "transfers in a row, and late copies", ""},
	{"give sends a half that is nobody's", scripts.StockGive, "math.floor(free / 2)", "free", "half of the units", "give: "},
	{"give keeps what it collects from everybody", scripts.StockGive, "ARGV[9] == '1' and wants > now and tonumber(ARGV[8]) < tonumber(ARGV[5])", "wants > now", "two buyers whose units are in the other one's bucket", "give: "},
	{"a view sees nothing on its way", scripts.StockView, "if number(11) ~= 0 then", "if false then", "two processes finish what a third began", "look: "},
	{"a view sees no order", scripts.StockView, "redis.call('HEXISTS', KEYS[2], 'o:' .. ARGV[i])", "0", "one order from two processes across a resize", "look: "},
	{"a view sees nothing that is over", scripts.StockView, "redis.call('ZCOUNT', KEYS[3], '-inf', string.format('%.0f', now))", "0", "two buyers, an expiry and a resize", "look: "},
	{"a cancel is not counted", scripts.StockCancel, "if several then\n    redis", "if false then\n    redis", "units that come on sale while they are looked for", "verdict: "},
}

func TestExploreBuckets_findsEachSpoiledScript(t *testing.T) {
	for _, m := range spoiledBuckets {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			sc, ok := bucketsScenarios[m.scenario]
			require.True(t, ok)
			require.Equal(t, 1, strings.Count(m.script.Text(), m.old))
			sc.Instead = spoil(t, m.script, m.old, m.new)
			_, err := explore.Buckets(newMini(t), sc)
			v := violation(t, err)
			t.Logf("%v", v)
			require.Contains(t, v.Property.Error(), m.property)
			require.NotEmpty(t, v.Schedule)
		})
	}
}

// Rules for a verdict that are too simple, each refuted by a scenario.
func TestExploreBuckets_findsWhatIsWrongWithSimplerRules(t *testing.T) {
	for _, m := range []struct {
		name     string
		scenario string
		short    func(before, now explore.Cut, wanted int64) bool
	}{
		{"one look", "a unit that moves while it is looked for", func(_, _ explore.Cut, _ int64) bool { return true }},
		{"two looks that see too little", "units that come on sale while they are looked for", func(before, _ explore.Cut, wanted int64) bool {
			return before != explore.Cut{} && before.Sum() < wanted
		}},
		{"what came on sale does not matter", "units that come on sale while they are looked for", func(before, now explore.Cut, wanted int64) bool {
			for i := range now {
				before[i].Raised, now[i].Raised = 0, 0
			}
			return explore.Short(before, now, wanted)
		}},
		{"what the second look sees", "a buyer who has asked before", func(before, now explore.Cut, _ int64) bool {
			return explore.Short(before, now, 1000)
		}},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			sc, ok := bucketsScenarios[m.scenario]
			require.True(t, ok)
			sc.Short = m.short
			_, err := explore.Buckets(newMini(t), sc)
			v := violation(t, err)
			t.Logf("%v", v)
			require.Contains(t, v.Property.Error(), "verdict: ")
		})
	}
}
