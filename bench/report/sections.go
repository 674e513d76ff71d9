package report

import "github.com/holdfast-go/holdfast/bench"

// A metric is one unit that benchmarks report.
type metric struct {
	unit, title string
	format      func(float64) string
	higher      bool // the more the better
	aside       bool // it explains others, and is nothing to be better at
}

// A target is what Holdfast is to reach.
type target struct {
	text  string
	value func(*Run) float64
	bound float64
	least bool // the bound is the least, not the most
}

// A section is a workload's part of the report.
type section struct {
	workload bench.Workload
	title    string
	method   string
	limit    string   // the implementation that is the limit; empty if there is none
	main     []metric // each gives a line of the summary; the first one is charted
	chart    metric
	chartAt  int // the value whose rows are charted, where there are no lines; 0 is the first one
	more     []metric
	targets  []target
	explain  string
}

var (
	latency      = metric{unit: "p50-ns", title: "p50", format: nanos}
	latency99    = metric{unit: "p99-ns", title: "p99", format: nanos}
	clientCPU    = metric{unit: "client-cpu-ns/op", title: "client CPU each", format: nanos}
	serverCPU    = metric{unit: "server-cpu-ns/op", title: "server CPU each", format: nanos}
	commands     = metric{unit: "cmds/op", title: "commands each", format: number, aside: true}
	allocs       = metric{unit: "allocs/op", title: "allocations each", format: number}
	pairs        = metric{unit: "pairs/s", title: "pairs/s", format: number, higher: true}
	acquisitions = metric{unit: "acquisitions/s", title: "acquisitions/s", format: number, higher: true}
	spread       = metric{unit: "max/min", title: "max/min of a goroutine", format: number}
	starved      = metric{unit: "starved-%", title: "got nothing", format: percent}
	longest      = metric{unit: "p99-longest-wait-ns", title: "longest wait, p99", format: nanos}
	perHandoff   = metric{unit: "cmds/handoff", title: "commands each", format: number}
	purchases    = metric{unit: "purchases/s", title: "purchases/s", format: number, higher: true}
	refusals     = metric{unit: "refusals/s", title: "refusals/s", format: number, higher: true}
	perRefusal   = metric{unit: "cmds/op", title: "commands each", format: number}
	rate         = metric{unit: "cmds/s", title: "commands/s", format: number}
	firstSecond  = metric{unit: "cmds-first-second", title: "in the first second", format: number, aside: true}
	clientShare  = metric{unit: "client-cpu-%", title: "client CPU", format: percent}
	serverShare  = metric{unit: "server-cpu-%", title: "server CPU", format: percent}
	waiterBytes  = metric{unit: "B/waiter", title: "memory each", format: size}
	waiterStack  = metric{unit: "stack-B/waiter", title: "of it stack", format: size, aside: true}
	waiterGo     = metric{unit: "goroutines/waiter", title: "goroutines each", format: number, aside: true}
	lockBytes    = metric{unit: "B/lock", title: "memory each", format: size}
	lockStack    = metric{unit: "stack-B/lock", title: "of it stack", format: size, aside: true}
	lockGo       = metric{unit: "goroutines/lock", title: "goroutines each", format: number, aside: true}
)

// overLimit is the median ratio of an implementation to another one.
func over(w bench.Workload, value int, unit, ours, other string) func(*Run) float64 {
	return func(r *Run) float64 { return r.ratio(w.Name, ours, other, value, unit).median }
}

// median is the median of holdfast's own figure.
func median(w bench.Workload, value int, unit, impl string) func(*Run) float64 {
	return func(r *Run) float64 { return r.stat(w.Name, impl, value, unit).median }
}

// overPeers is the ratio of an implementation of ours to the best peer's.
func overPeers(w bench.Workload, value int, m metric, ours string) func(*Run) float64 {
	return func(r *Run) float64 {
		peer := r.bestPeer(w, value, m)
		return r.ratio(w.Name, ours, peer, value, m.unit).median
	}
}

// growth is the ratio of an implementation's figure to its own at a smaller value.
func growth(w bench.Workload, value, smaller int, unit, impl string) func(*Run) float64 {
	return func(r *Run) float64 { return r.growth(w.Name, impl, value, smaller, unit).median }
}

// worst is the largest of several figures, or the least.
func worst(least bool, figures ...func(*Run) float64) func(*Run) float64 {
	return func(r *Run) float64 {
		w := figures[0](r)
		for _, f := range figures[1:] {
			if least {
				w = min(w, f(r))
			} else {
				w = max(w, f(r))
			}
		}
		return w
	}
}

// eachValue makes figures for values of a workload.
func eachValue(values []int, f func(int) func(*Run) float64) []func(*Run) float64 {
	var figures []func(*Run) float64
	for _, v := range values {
		figures = append(figures, f(v))
	}
	return figures
}

var sections = []section{
	{
		workload: bench.Uncontended,
		title:    "A free lock",
		method: "One goroutine takes a free lock and gives it back, again and again. With one core the client (GOMAXPROCS=1) and the server are bound to the " +
			"same core, so nothing overlaps and each instruction of either shows; with two cores the server has the second one. Linux only: elsewhere nothing is bound.",
		limit: "limit-hash",
		main:  []metric{latency},
		chart: latency,
		more:  []metric{latency99, clientCPU, serverCPU, allocs, commands},
		targets: []target{
			{"p50 on one core, over limit-hash", over(bench.Uncontended, 1, "p50-ns", "holdfast", "limit-hash"), 1.12, false},
			{"the same with fencing", over(bench.Uncontended, 1, "p50-ns", "holdfast-fenced", "limit-hash"), 1.25, false},
			{"allocations", median(bench.Uncontended, 1, "allocs/op", "holdfast"), 12, false},
			{"client CPU on one core, over the lowest peer's", overPeers(bench.Uncontended, 1, clientCPU, "holdfast"), 1, false},
		},
		explain: "Every lock here sends two commands, one round trip each, except redisson-protocol (a third one deletes its unlock latch) and rueidislock (a script for each of its three keys to take " +
			"and to release, of which a caller waits for two). So the round trips are the same for nearly all, and what differs is data and client. The string of redsync and redislock is cheaper " +
			"for the server than the hash that Holdfast shares with Redisson (limit-string against limit-hash): one command that is no script, and no count, no PEXPIRE, no PUBLISH. For that it has no re-entrance and no message " +
			"to wake a waiter. What Holdfast adds to limit-hash is the queue of the process, the lease with its context and deadline, and the watchdog's heap. A context that can be cancelled costs a goroutine more for each " +
			"command, so that an attempt whose caller has gone is still seen to its end. holdfast-fenced mints a token as well: its script asks for the server's clock and writes the counter. redisson pays for threads that hand each command to the network's and back. etcd writes to the disk before it answers.",
	},
	{
		workload: bench.Distinct,
		title:    "Many free locks",
		method:   "Goroutines of one process take and give back a lock each, which nobody else wants. Client and server share the cores; nothing is bound.",
		limit:    "limit-hash",
		main:     []metric{pairs},
		chart:    pairs,
		more:     []metric{clientCPU, serverCPU, commands},
		targets: []target{
			{"pairs/s at 16, 128 and 1,024 goroutines, over limit-hash, the worst", worst(true, eachValue([]int{16, 128, 1024},
				func(v int) func(*Run) float64 { return over(bench.Distinct, v, "pairs/s", "holdfast", "limit-hash") })...), 0.85, true},
			{"pairs/s at 16, 128 and 1,024 goroutines, over the best peer, the worst", worst(true, eachValue([]int{16, 128, 1024},
				func(v int) func(*Run) float64 { return overPeers(bench.Distinct, v, pairs, "holdfast") })...), 1, true},
		},
		explain: "The CPU is the bound here, and client and server compete for it: the sum of both columns of CPU, over the number of cores, is the time of a pair. rueidis puts the commands of all goroutines into one pipeline, so the more there are the fewer system calls " +
			"each needs; go-redis gives each command a connection of its pool and a system call of its own, and stays where it is. redsync makes a goroutine for each command. " +
			"Fewer than two commands each mean that goroutines which asked at the same moment shared a script. Up to 16 goroutines go alone, since they would only wait for each other; there redsync on rueidis is level or a little ahead, because its string is cheaper for the server (limit-string against limit-hash).",
	},
	{
		workload: bench.Contended,
		title:    "One lock, one process",
		method: "Goroutines of one process want one lock without a pause and do nothing with it. The counter that they raise under it is checked. " +
			"A wait that has no end counts as far as it went.",
		limit: "limit-handoff",
		main:  []metric{acquisitions},
		chart: acquisitions,
		more:  []metric{spread, starved, longest, commands, clientCPU},
		targets: []target{
			{"acquisitions/s at 2 to 1,000 goroutines, the least", worst(true, eachValue(bench.Contended.Values,
				func(v int) func(*Run) float64 { return median(bench.Contended, v, "acquisitions/s", "holdfast") })...), 150_000, true},
			{"the same over the best peer, the worst", worst(true, eachValue(bench.Contended.Values,
				func(v int) func(*Run) float64 { return overPeers(bench.Contended, v, acquisitions, "holdfast") })...), 20, true},
			{"max/min of a goroutine, the worst", worst(false, eachValue(bench.Contended.Values,
				func(v int) func(*Run) float64 { return median(bench.Contended, v, "max/min", "holdfast") })...), 1.3, false},
			{"longest wait at 128 goroutines, p99, in milliseconds", func(r *Run) float64 {
				return r.stat("Contended", "holdfast", 128, "p99-longest-wait-ns").median / 1e6
			}, 10, false},
			{"without handoff: acquisitions/s over the best peer, the worst", worst(true, eachValue(bench.Contended.Values,
				func(v int) func(*Run) float64 {
					return overPeers(bench.Contended, v, acquisitions, "holdfast-nohandoff")
				})...), 0.9, true},
			{"without handoff: max/min of a goroutine, the worst", worst(false, eachValue(bench.Contended.Values,
				func(v int) func(*Run) float64 { return median(bench.Contended, v, "max/min", "holdfast-nohandoff") })...), 1.3, false},
		},
		explain: "Holdfast hands the lock from goroutine to goroutine in order, and asks Redis once in 65 acquisitions or 5 ms, so that other processes have their chance. The peers ask Redis each time, and those that poll let the goroutine win that has just " +
			"unlocked: it asks at once, while the others sleep. That is why the polling ones with long delays can have many acquisitions per second and a column of goroutines that got nothing; a shorter delay shares better and sends more commands. " +
			"redisson-protocol wakes one waiter for each release, who competes with whoever comes by. Without handoff Holdfast keeps the order, so each acquisition waits for the wake-up of the next in line; as long as nobody else listens to the release, that and the next attempt share a round trip. A peer that starves " +
			"the others saves the wake-up. etcd keeps an order in the server; it is not measured beyond 16 goroutines, each of which needs a session.",
	},
	{
		workload: bench.Handoff,
		title:    "One lock, four processes",
		method: "Four processes with one caller each want one lock, keep it for 4 ms, and ask again as soon as another one has it. So every Unlock hands the lock to another process, with the other three waiting. " +
			"The latency is from the start of Unlock to the return of the next Lock. Without the rule a library that polls would be measured while one process takes its own lock again and again.",
		limit: "limit-grant",
		main:  []metric{latency},
		chart: latency,
		more:  []metric{latency99, perHandoff, serverCPU},
		targets: []target{
			{"p50 over the bare directed grant", over(bench.Handoff, 4, "p50-ns", "holdfast", "limit-grant"), 1.7, false},
			{"p50 over the best peer's", overPeers(bench.Handoff, 4, latency, "holdfast"), 1, false},
			{"commands for each handoff", median(bench.Handoff, 4, "cmds/handoff", "holdfast"), 5, false},
		},
		explain: "The bare grant is one script and one message. Holdfast's release publishes to all processes, one caller of each wakes and asks, and one of them gets the lock: two round trips in a row, and the others' questions are in the way on two cores. " +
			"rueidislock does the same by invalidations, in about the same time, redisson-protocol with a latch to write and delete. Who polls finds the lock free after a part of the delay, with random delays about a quarter where three wait; redislock's constant delay falls into step with the turns, so that nearly all of it passes. With a delay of 1 ms they are quicker, at a price in commands.",
	},
	{
		workload: bench.Readers,
		title:    "A lock that many read",
		method: "One goroutine takes a read lock and gives it back, again and again, while 10 or 1,000 readers of another process have the same lock, each with a hold of its own in Redis; " +
			"that they are all there is checked before and after. Client and server are bound to a core each, as for a free lock with two cores.",
		limit:   "limit-reader",
		main:    []metric{latency},
		chart:   latency,
		chartAt: 1000,
		more:    []metric{latency99, clientCPU, serverCPU, allocs, commands},
		targets: []target{
			{"p50 beside 1,000 readers, over redisson-protocol's", over(bench.Readers, 1000, "p50-ns", "holdfast", "redisson-protocol"), 0.5, false},
			{"server CPU beside 1,000 readers, over that beside 10", growth(bench.Readers, 1000, 10, "server-cpu-ns/op", "holdfast"), 1.5, false},
			{"commands per pair, the most", worst(false, eachValue(bench.Readers.Values,
				func(v int) func(*Run) float64 { return median(bench.Readers, v, "cmds/op", "holdfast") })...), 2, false},
		},
		explain: "Each hold of a reader has a time to live of its own, and the lock must outlive the longest of them. Redisson's unlock finds that one by a look at every hold of every reader, so what it costs grows with their number, and while it looks the " +
			"server serves nobody else. Holdfast's takes its own hold out and leaves the lock's time to live alone: the watchdogs of those who still read carry it on, and a reader that died is found by who waits for the lock. " +
			"Redisson's acquire does not depend on the others either. " +
			"The emulation reads all fields of the lock at once and asks for the time to live of each hold, which is the least that the look needs. " +
			"Both libraries send one script to take and one to release; the third command of redisson-protocol deletes its unlock latch.",
	},
	{
		workload: bench.Stock,
		title:    "A flash sale",
		method: "Goroutines of one process buy a unit each, again and again, from a stock that never ends, and each purchase is an order with an id of its own. Holdfast reserves the unit, which is what decides; the payment is not measured. " +
			"redsync holds a lock around a GET and a SET of a number, one purchase for each hold. After the measurement the units are counted. Client and server share the cores; nothing is bound.",
		limit: "limit-reserve",
		main:  []metric{purchases},
		chart: purchases,
		more:  []metric{clientCPU, serverCPU, commands, starved},
		targets: []target{
			{"purchases/s at 128 goroutines, over limit-reserve", over(bench.Stock, 128, "purchases/s", "holdfast", "limit-reserve"), 2, true},
			{"the same at 1,024", over(bench.Stock, 1024, "purchases/s", "holdfast", "limit-reserve"), 3, true},
			{"the same at 1 and 16, the worst", worst(true, eachValue([]int{1, 16},
				func(v int) func(*Run) float64 {
					return over(bench.Stock, v, "purchases/s", "holdfast", "limit-reserve")
				})...), 0.95, true},
			{"purchases/s at 128 and 1,024 goroutines, over the best redsync, the worst", worst(true, eachValue([]int{128, 1024},
				func(v int) func(*Run) float64 { return overPeers(bench.Stock, v, purchases, "holdfast") })...), 40, true},
			{"the same, over redsync with a retry of 1 ms", worst(true, eachValue([]int{128, 1024},
				func(v int) func(*Run) float64 {
					return over(bench.Stock, v, "purchases/s", "holdfast", "redsync-rueidis-1ms")
				})...), 40, true},
		},
		explain: "A reservation is one script, which decides, counts and remembers the order, so that it can be sent twice. Its price is the server's, which runs a script that writes to three keys. Holdfast has what many goroutines ask at the same moment done by one script, up to 128 orders at a time, which reads and writes once for all of them; with one goroutine it does what limit-reserve does. Under a lock a purchase is four small commands, and only one purchase is under way at a time; one that is sent again sells twice, " +
			"and a holder that stands still sells what others have sold. With redsync's default, which tries again after 50 to 250 ms, the goroutine that has just unlocked takes the lock again before the others ask: look at the column of goroutines that got nothing. " +
			"What they sell together is then little less than what one of them sells alone. With a retry of 1 ms the others have their turns, and their questions are in the way, until at 1,024 hardly anything is sold. With one goroutine nobody waits, and four round trips stand against one.",
	},
	{
		workload: bench.SoldOut,
		title:    "Sold out",
		method: "The last unit is sold. Goroutines of one process want one all the same, again and again, each time with another order, and are told that nothing is left. " +
			"redsync takes its lock and reads the number.",
		limit: "limit-reserve",
		main:  []metric{perRefusal},
		chart: perRefusal,
		more:  []metric{refusals, clientCPU, serverCPU},
		targets: []target{
			{"commands for each refusal at 128 goroutines", median(bench.SoldOut, 128, "cmds/op", "holdfast"), 0.2, false},
		},
		explain: "Who comes when all is sold is most of a flash sale. Holdfast remembers for a second that the stock was sold out, and then asks for all that come at the same time with one script, which only looks: whether there are units again, and whether one of the orders has some already, " +
			"for one that is repeated must not be told that it came too late. So nobody is refused by memory alone.",
	},
	{
		workload: bench.Waiters,
		title:    "A thousand waiters",
		method: "A thousand goroutines of one process wait for a lock that another process holds; measured are 5 s after their first second. Memory and goroutines are what each further waiter adds to the first one, which opens what all share, and to its own goroutine. " +
			"PINGs that clients send on idle connections are not counted.",
		main:  []metric{rate, clientShare, waiterBytes},
		chart: clientShare,
		more:  []metric{waiterStack, waiterGo, firstSecond, serverShare},
		targets: []target{
			{"commands/s", median(bench.Waiters, 1000, "cmds/s", "holdfast"), 0, false},
			{"client CPU, percent", median(bench.Waiters, 1000, "client-cpu-%", "holdfast"), 0.3, false},
			{"bytes for each waiter", median(bench.Waiters, 1000, "B/waiter", "holdfast"), 4096, false},
			{"goroutines for each waiter besides the caller's", median(bench.Waiters, 1000, "goroutines/waiter", "holdfast"), 1, false},
		},
		explain: "Holdfast's waiters queue in the process, and only the first asks and listens. redisson-protocol and rueidislock are as quiet once all have asked; each of their callers asks once or twice at first. Who polls never stops. " +
			"Much of the memory of a waiter is the stack of its own goroutine, which is doubled where the calls that it waits in are deep.",
	},
	{
		workload: bench.Held,
		title:    "Ten thousand held locks",
		method: "Ten thousand locks with a lease of 10 s are held and renewed for 20 s. Their handles, leases and contexts are in the memory. At the end each is released, which fails where one was lost. " +
			"rueidislock is measured with one key only; see below.",
		limit: "limit-batch",
		main:  []metric{rate, clientShare, lockBytes},
		chart: rate,
		more:  []metric{lockStack, lockGo, serverShare},
		targets: []target{
			{"commands/s", median(bench.Held, 10_000, "cmds/s", "holdfast"), 40, false},
			{"client CPU, percent", median(bench.Held, 10_000, "client-cpu-%", "holdfast"), 1, false},
			{"goroutines for each lock", median(bench.Held, 10_000, "goroutines/lock", "holdfast"), 0.01, false},
			{"bytes for each lock", median(bench.Held, 10_000, "B/lock", "holdfast"), 1536, false},
		},
		explain: "Holdfast and redisson-protocol renew in batches of 100 from one timer; Holdfast also has for each lock a context, a deadline that it watches, and a reason when it is lost. redsync and redislock have no watchdog, so a goroutine with a ticker " +
			"renews each lock. rueidislock has a goroutine for each key and renews every half of a lease. With its defaults, that is without NoLoopTracking, " +
			"each renewal also invalidates its own key in its client, which it takes as a reason to renew at once: from the first renewal on a single held lock sends tens of thousands of commands per second, so ten thousand cannot be measured. " +
			"etcd keeps one lease for all locks of a session alive, which is the cheapest of all: they are lost together.",
	},
}
