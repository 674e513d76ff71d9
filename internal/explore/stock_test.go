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

// The commands of programs, for orders a, b and c.
type program = []explore.StockCommand

func take(order string, units int64, ticks int) explore.StockCommand {
	return explore.StockCommand{Op: explore.Reserve, Order: order, Units: units, Ticks: ticks, Buyer: "ann"}
}

func tentative(order string, units int64) explore.StockCommand {
	return explore.StockCommand{Op: explore.Tentative, Order: order, Units: units, Ticks: 1, Buyer: "ann"}
}

func to(op explore.StockOp, order string) explore.StockCommand {
	return explore.StockCommand{Op: op, Order: order, Ticks: 2}
}

func refund(order string, units int64) explore.StockCommand {
	return explore.StockCommand{Op: explore.Refund, Order: order, Request: "f" + order, Units: units}
}

var deliver = explore.StockCommand{Op: explore.Deliver, Request: "d", Units: 1}

const (
	confirm = explore.Confirm
	cancel  = explore.Cancel
)

var stockScenarios = map[string]explore.StockScenario{
	"two buyers, one unit": {
		Units: 1, Clients: []program{{take("a", 1, 2), to(confirm, "a")}, {take("b", 1, 2), to(confirm, "b")}}, Faults: 2, Ticks: 3, Retention: long,
	},
	"one order from two processes": {
		Units: 2, Clients: []program{{take("a", 1, 2), to(confirm, "a")}, {take("a", 1, 2), to(cancel, "a")}}, Faults: 2, Ticks: 3, Retention: long,
	},
	"one order with two quantities": {
		Units: 3, Clients: []program{{take("a", 1, 2), to(confirm, "a")}, {take("a", 2, 2), to(cancel, "a")}}, Faults: 2, Ticks: 2, Retention: long,
	},
	"a cancel overtakes the reservation": {
		Units: 1, Clients: []program{{take("a", 1, 2), to(cancel, "a")}, {to(cancel, "a"), take("b", 1, 1)}}, Faults: 2, Ticks: 2, Retention: long,
	},
	"payment at the end of the time": {
		Units: 1, Clients: []program{{take("a", 1, 1), to(confirm, "a")}, {take("b", 1, 1), to(explore.Extend, "b"), to(confirm, "b")}}, Faults: 1, Ticks: 3, Retention: long,
	},
	"refunds": {
		Units: 2, Clients: []program{{take("a", 2, 2), to(confirm, "a"), refund("a", 1)}, {refund("a", 1), take("b", 1, 2)}}, Faults: 2, Ticks: 2, Retention: long,
	},
	"a delivery": {
		Units: 0, Clients: []program{{deliver, take("a", 1, 1)}, {take("b", 1, 1), deliver}}, Faults: 2, Ticks: 2, Retention: long,
	},
	"a limit": {
		Units: 5, Limit: 2, Clients: []program{{take("a", 2, 1), to(confirm, "a")}, {take("b", 1, 2), to(cancel, "b")}}, Faults: 2, Ticks: 2, Retention: long,
	},
	"a limit and refunds": {
		Units: 5, Limit: 2, Clients: []program{{take("a", 2, 2), to(confirm, "a"), refund("a", 1)}, {take("b", 1, 2), to(confirm, "b")}}, Faults: 1, Ticks: 2, Retention: long,
	},
	"a basket": {
		Units: 1, Clients: []program{{tentative("a", 1), to(explore.Settle, "a"), to(confirm, "a")}, {take("b", 1, 2), to(confirm, "b")}}, Faults: 2, Ticks: 3, Retention: long,
	},
	"a basket that is given back": {
		Units: 1, Clients: []program{{tentative("a", 1), to(explore.GiveBack, "a"), tentative("a", 1), to(explore.Settle, "a")}, {take("b", 1, 2)}}, Faults: 2, Ticks: 2, Retention: long,
	},
	"copies so late that all is forgotten": {
		Units: 1, Clients: []program{{take("a", 1, 1), to(cancel, "a")}, {take("b", 1, 1), to(confirm, "b"), refund("b", 1)}}, Faults: 2, Ticks: 4, Retention: 1, Forgets: true,
	},
}

func TestExploreStock_everyScheduleOfEveryScenario(t *testing.T) {
	var (
		mu    sync.Mutex
		total explore.Report
	)
	began := time.Now()
	t.Run("scenarios", func(t *testing.T) {
		for name, sc := range stockScenarios {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				sc.Faults += *more
				report, err := explore.Stock(newMini(t), sc)
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

// spoiledStock are scripts with a mistake, each found in one of the scenarios.
var spoiledStock = []struct {
	name     string
	script   *scripts.Script
	old, new string
	scenario string
	property string
}{
	{"reserve takes what is not there", scripts.StockReserve, "if free >= units then", "if true then", "two buyers, one unit", "answer: "},
	{"reserve again takes again", scripts.StockReserve, "if o then\n    if o.state", "if false then\n    if o.state", "two buyers, one unit", "answer: "},
	{"reserve does not compare", scripts.StockReserve, "o.units ~= units or ", "", "one order with two quantities", "answer: "},
	{"reserve takes a cancelled order", scripts.StockReserve, "if o.state == 'x' then", "if false then", "one order from two processes", "answer: "},
	{"reserve does not sweep", scripts.StockReserve, "swept = sweep(most)", "swept = 0", "two buyers, one unit", "answer: "},
	{"reserve has no limit", scripts.StockReserve, "if has + units > limit then", "if false then", "a limit", "answer: "},
	{"reserve does not wait for baskets", scripts.StockReserve, "free + tentative >= units", "false", "a basket", "answer: "},
	{"confirm comes late", scripts.StockConfirm, "if o and live(o) and o.at <= now then", "if false then", "payment at the end of the time", "answer: "},
	{"confirm sells what is cancelled", scripts.StockConfirm, "elseif o.state == 'x' then", "elseif false then", "one order from two processes", "answer: "},
	{"confirm sells twice", scripts.StockConfirm, "elseif o.state == 's' then", "elseif false then", "two buyers, one unit", "twice: "},
	{"cancel gives back what is sold", scripts.StockCancel, "elseif o.state == 's' then", "elseif false then", "one order from two processes", "answer: "},
	{"cancel forgets an unknown order", scripts.StockCancel, "write({ id", "local _ = ({ id", "a cancel overtakes the reservation", "answer: "},
	{"drop gives back nothing", scripts.StockCancel, "restock(o.units, undecided)", "", "one order from two processes", "sums: "},
	{"drop forgets the limit", scripts.StockCancel, "bought(o.buyer, -o.units)\n  o.state", "o.state", "a limit", ""},
	{"extend revives", scripts.StockExtend, "elseif o.state == 'e' then", "elseif false then", "payment at the end of the time", "answer: "},
	{"extend shortens", scripts.StockExtend, "if till > o.at then", "if till ~= o.at then", "extends", "answer: "},
	{"refund again gives back again", scripts.StockRefund, "if known then", "if false then", "refunds", "twice: "},
	{"refund gives back more than was sold", scripts.StockRefund, "if units > o.units - o.refunded then", "if false then", "large refund", "answer: "},
	{"refund leaves the limit", scripts.StockRefund, "bought(o.buyer, -units)", "", "a limit and refunds", ""},
	{"a delivery comes twice", scripts.StockAdd, "if known then", "if false then", "a delivery", "twice: "},
	{"settle revives", scripts.StockSettle, "elseif o.state == 'e' then", "elseif false then", "a basket", ""},
	{"orders are kept for ever", scripts.StockConfirm, "remember('o:' .. o.id, tonumber(ARGV[4]))\nreturn", "return", "two buyers, one unit", "left over: "},
}

func TestExploreStock_findsEachSpoiledScript(t *testing.T) {
	extra := map[string]explore.StockScenario{
		"extends": {
			Units: 1, Clients: []program{{take("a", 1, 3), to(explore.Extend, "a"), to(confirm, "a")}}, Ticks: 3, Retention: long,
		},
		"large refund": {
			Units: 2, Clients: []program{{take("a", 1, 3), to(confirm, "a"), refund("a", 2)}}, Ticks: 1, Retention: long,
		},
	}
	for _, m := range spoiledStock {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			sc, ok := stockScenarios[m.scenario]
			if !ok {
				sc, ok = extra[m.scenario]
			}
			require.True(t, ok)
			require.Equal(t, 1, strings.Count(m.script.Text(), m.old))
			sc.Instead = spoil(t, m.script, m.old, m.new)
			_, err := explore.Stock(newMini(t), sc)
			v := violation(t, err)
			t.Logf("%v", v)
			require.Contains(t, v.Property.Error(), m.property)
			require.NotEmpty(t, v.Schedule)
		})
	}
}
