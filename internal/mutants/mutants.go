package main

const lua = "scripts/lua/"

var (
	inScripts   = []string{"./scripts"}
	inLease     = []string{"./internal/lease"}
	inReentrant = []string{"./reentrant"}
	inPubsub    = []string{"./pubsub"}
	inFence     = []string{"./fence"}
	inCore      = []string{"./internal/core"}
	inSegmented = []string{"./segmented"}
	inExplore   = []string{"./internal/explore"}
)

// mutants are what the tests have to catch. A rule of the design that is not
// spoilt here is worth a line.
var mutants = []mutant{
	// Scripts.
	{
		"release without an owner check", lua + "reentrant_release.lua",
		"redis.call('HDEL', KEYS[1], ARGV[1]) == 0", "redis.call('DEL', KEYS[1]) == 0", inScripts, "",
	},
	{
		"acquire without an expiry", lua + "reentrant_acquire.lua",
		"  redis.call('PEXPIRE', KEYS[1], ARGV[2])\n  return -2\nend\nlocal", "  return -2\nend\nlocal", inScripts, "",
	},
	{
		"a repeated acquire is refused", lua + "reentrant_acquire.lua",
		"if not found[1] then", "if true then", inScripts, "",
	},
	{
		"a read-write lock is taken for free", lua + "reentrant_acquire.lua",
		"if found[2] then", "if false then", inScripts, "",
	},
	{
		"a repeated acquire mints a token", lua + "reentrant_acquire_fenced.lua",
		"if last and #last <= 16 and not string.find(last, '%D') and (tonumber(last) or 0) > 0 then", "if false then", inScripts, "",
	},
	{
		"tokens fall when the counter is lost", lua + "reentrant_acquire_fenced.lua",
		"local first = time[1] .. string.sub('00000' .. time[2], -6)", "local first = '1'", inScripts, "",
	},
	{
		"a counter of Redisson gets a TTL", lua + "reentrant_acquire_fenced.lua",
		" and redis.call('PTTL', KEYS[2]) ~= -1", "", inScripts, "",
	},
	{
		"a nested acquire creates the lock", lua + "reentrant_count.lua",
		"if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then", "if false then", inScripts, "",
	},
	{
		"a nested acquire lowers the TTL", lua + "reentrant_count.lua",
		"left < 0 and ARGV[3] or math.max(left, 1)", "ARGV[3]", inScripts, "",
	},
	{
		"a renewal lowers the TTL", lua + "reentrant_renew.lua",
		"if redis.call('PTTL', KEYS[i]) < tonumber(ARGV[n + i]) then", "if true then", inScripts, "",
	},
	{
		"a renewal without an owner check", lua + "reentrant_renew.lua",
		"elseif mine == 0 then", "elseif false then", inScripts, "",
	},
	{
		"a bad key ends the whole batch", lua + "reentrant_renew.lua",
		"redis.pcall('HEXISTS'", "redis.call('HEXISTS'", inScripts, "",
	},
	{
		"a release tells nobody", lua + "reentrant_release.lua",
		"redis.call('PUBLISH', ARGV[2], '0')", "local _ = 0", inScripts, "",
	},
	{
		"a kept lock stays the owner's", lua + "reentrant_release.lua",
		"ARGV[1] .. ':released'", "ARGV[1]", inScripts, "",
	},
	{
		"a release leaves no receipt", lua + "reentrant_release_receipt.lua",
		"redis.call('SET', KEYS[2], ARGV[5], 'PX', ARGV[6])", "local _ = 0", inScripts, "",
	},
	{
		"a fence lets older tokens pass", lua + "fence_guard.lua",
		"#token < #newest or (#token == #newest and token < newest)", "false", inFence, "",
	},

	// The striped lock.
	{
		"the number of segments is recorded anew", lua + "segmented_count.lua",
		"if count then", "if false then", inSegmented, "Segments",
	},
	{
		"another number of segments is let in", "segmented/lock.go",
		"if recorded != strconv.Itoa(n) {", "if false {", inSegmented, "Segments",
	},
	{
		"segments are taken in the order of their keys", "segmented/lock.go",
		"slices.SortFunc(segments, func(a, b int) int { return cmp.Compare(l.rank[a], l.rank[b]) })", "slices.SortFunc(segments, func(a, b int) int { return 0 })", inSegmented, "LockKeys_takes",
	},
	{
		"a striped lock that failed keeps its parts", "segmented/lock.go",
		"_ = joint.Unlock(ctx)", "", inSegmented, "LockKeys_aSegment",
	},
	{
		"a joint lease does not see its other parts' loss", "segmented/lock.go",
		"segment.Lock(inner)", "segment.Lock(ctx)", inSegmented, "Joint",
	},
	{
		"a grant too many is kept", "segmented/lock.go",
		"_ = g.lease.Unlock(ctx)", "", inSegmented, "LockAny|LockKeys_callers",
	},
	{
		"a key moves to another segment", "segmented/hash.go",
		"\t\th *= 1099511628211", "\t\th *= 1099511628213", inSegmented, "Hash",
	},

	// The stock.
	{
		"a stock's refusal is not tried again in the caller's time", "segmented/try.go",
		"late: time.Until(end) / 8", "late: s.tools.Timeout / 8", inSegmented, "TestStock_aRefusal",
	},
	{
		"an order takes what is not there", lua + "stock_reserve.lua",
		"if free >= units then", "if true then", inExplore, "Stock_every",
	},
	{
		"an order takes its units twice", lua + "stock_reserve.lua",
		"if o then\n    if o.state", "if false then\n    if o.state", inExplore, "Stock_every",
	},
	{
		"an order with another quantity is the same", lua + "stock_reserve.lua",
		"o.units ~= units or ", "", inExplore, "Stock_every",
	},
	{
		"sold out while reservations are over", lua + "stock_reserve.lua",
		"swept = sweep(most)", "swept = 0", inExplore, "Stock_every",
	},
	{
		"a buyer has no limit", lua + "stock_reserve.lua",
		"if has + units > limit then", "if false then", inExplore, "Stock_every",
	},
	{
		"sold out while a basket is undecided", lua + "stock_reserve.lua",
		"free + tentative >= units", "false", inSegmented, "Basket",
	},
	{
		"a script sweeps without bound", lua + "stock_reserve.lua",
		"local most, swept = 100, nil", "local most, swept = 1000, nil", inScripts, "Stock",
	},
	{
		"a payment after the end counts", lua + "include/stock.lua",
		"if o and live(o) and o.at <= now then", "if false then", inExplore, "Stock_every",
	},
	{
		"units that come back are lost", lua + "include/stock.lua",
		"  restock(o.units, undecided)\nend", "end", inExplore, "Stock_every",
	},
	{
		"nobody is told that units came back", lua + "include/stock.lua",
		"plain(units)) == units or undecided then", "plain(units)) < 0 then", inSegmented, "Watch|Basket_aDecision",
	},
	{
		"an expired order does not reach the outbox", lua + "include/stock.lua",
		"redis.call('ZADD', expired, plain(now), o.id)", "local _ = 0", inSegmented, "Expired|Rapid",
	},
	{
		"a confirm needs memory", lua + "stock_confirm.lua",
		"redis.call('ZREM', ends, o.id)\n", "", inSegmented, "fullMemory",
	},
	{
		"a confirm sells what was cancelled", lua + "stock_confirm.lua",
		"elseif o.state == 'x' then", "elseif false then", inExplore, "Stock_every",
	},
	{
		"a cancel gives back what is sold", lua + "stock_cancel.lua",
		"elseif o.state == 's' then", "elseif false then", inExplore, "Stock_every",
	},
	{
		"a cancel does not stop a late reservation", lua + "stock_cancel.lua",
		"write({ id", "local _ = ({ id", inExplore, "Stock_every",
	},
	{
		"a refund is made twice", lua + "stock_refund.lua",
		"if known then", "if false then", inExplore, "Stock_every",
	},
	{
		"a refund of more than was sold", lua + "stock_refund.lua",
		"if units > o.units - o.refunded then", "if false then", inSegmented, "theLife|Rapid",
	},
	{
		"a refund that is forgotten takes an order off the outbox", lua + "include/stock.lua",
		"if string.sub(field, 1, 2) == 'o:' then", "if true then", inScripts, "Stock_whatIsForgotten",
	},
	{
		"a delivery comes twice", lua + "stock_add.lua",
		"if known then", "if false then", inExplore, "Stock_every",
	},
	{
		"a lost bucket is made anew by a late copy", lua + "stock_bucket.lua",
		"if tonumber(time[1]) * 1000 > tonumber(ARGV[4]) then", "if false then", inScripts, "StockBucket",
	},
	{
		"a stock is loaded twice", lua + "stock_bucket.lua",
		"if id then", "if false then", inScripts, "StockBucket",
	},
	{
		"a bucket of another stock is used", lua + "include/stock.lua",
		"if found[1] ~= ARGV[1] then", "if not found[1] then", inScripts, "Stock_of",
	},
	{
		"a basket keeps what it has when a line fails", "segmented/basket.go",
		"for _, i := range lines[:n+1] {", "for _, i := range lines[n+1:] {", inSegmented, "Basket_getsAll",
	},
	{
		"an unknown outcome is called unavailable", "segmented/try.go",
		"\t\tt.sent = t.unknown\n", "\t\tt.sent = nil\n", inSegmented, "Unanswered",
	},
	{
		"sold out is told to an order that has its units", "segmented/ask.go",
		"q.answer.there = len(now[n].there) > at[i] && now[n].there[at[i]]", "q.answer.there = n < 0 && at[i] < 0", inSegmented, "SoldOut_isNotTold",
	},

	// Batches of reservations.
	{
		"an order takes its units twice in one batch", lua + "stock_reserve.lua",
		"  fresh[id] = true\n", "", inScripts, "StockReserve_a",
	},
	{
		"a batch forgets what it took before a refusal", lua + "stock_reserve.lua",
		"  scores, fields, reserved, promised, wants = {}, {}, 0, 0, nil", "  fresh, scores, fields, reserved, promised, wants = {}, {}, {}, 0, 0, nil", inScripts, "StockReserve_a",
	},
	{
		"a large order is not told that all is sold while memory is full", lua + "stock_reserve.lua",
		"redis.pcall('HSET', totals, 'wants', wants)", "redis.call('HSET', totals, 'wants', wants)", inSegmented, "fullMemoryHides",
	},
	{
		"all orders of a batch last as long as its first", lua + "stock_reserve.lua",
		"    over[window] = at\n", "    over = setmetatable({}, { __index = function() return at end })\n", inScripts, "StockReserve_a",
	},
	{
		"units that come with an order are not for it", lua + "stock_reserve.lua",
		"accept(ARGV[5])\n  count()\n", "accept(ARGV[5])\n", inScripts, "StockReserve_takesIn",
	},
	{
		"a batch gives each order what was free at first", lua + "stock_reserve.lua",
		"  free = free - units\n", "", inScripts, "StockReserve_a",
	},
	{
		"a limit does not count what the batch took", lua + "stock_reserve.lua",
		"  bought(buyer, units)\n", "", inScripts, "StockReserve_a",
	},
	{
		"a batch does not wait for its own basket", lua + "stock_reserve.lua",
		"promised, tentative = promised + units, tentative + units", "promised = promised + units", inScripts, "StockReserve_a",
	},
	{
		"a batch does not see what ended while it ran", lua + "stock_reserve.lua",
		"    o = look(id)\n    count()\n", "    o = look(id)\n", inScripts, "StockReserve_a",
	},
	{
		"a large order's wish is taken for the one of its batch before it", lua + "stock_reserve.lua",
		"      settle()\n      wants = plain(now + 100)\n", "      wants = plain(now + 100)\n", inScripts, "StockReserve_a",
	},
	{
		"a large order collects when it has what it wants", lua + "stock_reserve.lua",
		"redis.call('HDEL', totals, 'wants')", "local _ = 0", inScripts, "StockGive",
	},

	// Transfers between buckets.
	{
		"a transfer is taken in whatever its number", lua + "include/stock.lua",
		"if not last or tonumber(number) > tonumber(last) then", "if true then", inScripts, "Stock_aTransfer",
	},
	{
		"the last transfer is taken in again", lua + "include/stock.lua",
		"tonumber(number) > tonumber(last)", "tonumber(number) >= tonumber(last)", inScripts, "Stock_aTransfer",
	},
	{
		"the number of a transfer is not remembered", lua + "include/stock.lua",
		"redis.call('HSET', totals, 'from:' .. from, number)", "local _ = 0", inScripts, "Stock_aTransfer",
	},
	{
		"one number for all that send transfers", lua + "include/stock.lua",
		"redis.call('HGET', totals, 'from:' .. from)", "redis.call('HGET', totals, 'from:0')", inScripts, "Stock_aTransfer|StockReserve_takesIn",
	},
	{
		"units that are taken in are not counted", lua + "include/stock.lua",
		"redis.call('HINCRBY', totals, 'taken', units)", "local _ = 0", inScripts, "Stock_aTransfer",
	},
	{
		"units that come on sale are not counted", lua + "include/stock.lua",
		"redis.call('HINCRBY', totals, 'raised', 1)", "local _ = 0", inScripts, "Stock_counts",
	},
	{
		"units that come with an order are not taken in", lua + "stock_reserve.lua",
		"accept(ARGV[5])\n", "", inScripts, "StockReserve_takesIn",
	},
	{
		"any arrival ends a transfer", lua + "stock_arrived.lua",
		"if number ~= ARGV[3] then", "if not number then", inScripts, "Stock_aTransfer",
	},
	{
		"an arrival is not noted", lua + "stock_arrived.lua",
		"redis.call('HDEL', KEYS[1], 'to:' .. ARGV[2])", "local _ = 0", inScripts, "Stock_aTransfer",
	},
	{
		"a second transfer is opened over the first", lua + "stock_give.lua",
		"if open then", "if false then", inScripts, "Stock_aTransfer",
	},
	{
		"a transfer leaves its units on sale", lua + "stock_give.lua",
		"redis.call('HINCRBY', totals, 'free', plain(-units)) == 0", "false", inScripts, "Stock_aTransfer",
	},
	{
		"numbers of transfers fall with the clock", lua + "stock_give.lua",
		"math.max(sent + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))", "tonumber(time[1]) * 1000000 + tonumber(time[2])", inScripts, "StockGive",
	},
	{
		"a lost bucket begins with the numbers of transfers anew", lua + "stock_give.lua",
		"math.max(sent + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))", "sent + 1", inScripts, "StockGive",
	},
	{
		"a transfer does not sweep", lua + "stock_give.lua",
		"free < need and sweep(100) > 0", "false", inScripts, "StockGive",
	},
	{
		"two large orders take from each other for ever", lua + "stock_give.lua",
		"tonumber(ARGV[8]) < tonumber(ARGV[5])", "false", inScripts, "StockGive",
	},
	{
		"no more is sent than is needed", lua + "stock_give.lua",
		"if ARGV[7] == '1' then", "if false then", inScripts, "StockGive",
	},
	{
		"a view sees nothing on its way", lua + "stock_view.lua",
		"if number(11) ~= 0 then", "if false then", inScripts, "StockView",
	},
	{
		"another stock is resized", lua + "stock_resize.lua",
		"if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then", "if false then", inScripts, "StockResize",
	},
	{
		"sold out by one look", "segmented/ask.go",
		"if now.still(before) {", "if true {", inSegmented, "SoldOut_isNotToldForAUnit",
	},
	{
		"sold out though units came on sale between the looks", "segmented/bucket.go",
		"p.raised != before[i].raised || ", "", inSegmented, "SoldOut_isNotToldWhen",
	},
	{
		"sold out by what the second look saw", "segmented/ask.go",
		"was, _, _ := before.sum()", "was := u", inSegmented, "SoldOut_goesBy",
	},
	{
		"sold out while units are on their way", "segmented/ask.go",
		"case len(sent) > 0:", "case false:", inSegmented, "SoldOut_isNotTold",
	},
	{
		"sold out while orders of other buckets are over", "segmented/ask.go",
		"case due > 0:", "case false:", inSegmented, "SoldOut_isNotTold",
	},
	{
		"units of another stock are taken in", "segmented/stock.go",
		"len(coming) > 0 && c.id == sender.id; took", "len(coming) > 0; took", inSegmented, "unitsOfAnotherStock",
	},
	{
		"sold out by the buckets of another stock", "segmented/stock.go",
		"c, home = found, b", "home = b", inSegmented, "bucketsOfAnother|BucketsOfAnother",
	},
	{
		"nobody is told that units have arrived", "segmented/stock.go",
		"s.tools.Background(func(ctx context.Context) { _ = s.arrived(ctx, c, arrived) })", "_, _ = c, arrived", inSegmented, "Reserve_fetchesHalf",
	},
	{
		"a transfer is closed before it is taken in", "segmented/transfer.go",
		"	if _, err := s.each(ctx, holdfast.ErrUnavailable, scripts.StockTake, all, jobs); err != nil {\n		return err\n	}\n	return s.arrived(ctx, c, sent)",
		"	_ = s.arrived(ctx, c, sent)\n	_, err := s.each(ctx, holdfast.ErrUnavailable, scripts.StockTake, all, jobs)\n	return err", inSegmented, "Sweep_aTransfer",
	},
	{
		"an order fetches no more than it needs", "segmented/transfer.go",
		"if home.number < c.live {", "if false {", inSegmented, "Reserve_fetchesHalf",
	},
	{
		"half of the units go where none are to rest", "segmented/transfer.go",
		"if home.number < c.live {", "if true {", inSegmented, "Reserve_fetchesHalf",
	},
	{
		"a resize moves nothing", "segmented/transfer.go",
		"return s.balance(ctx, &resized)", "return nil", inSegmented, "Reserve_fetchesHalf",
	},
	{
		"a sweep leaves what a process that died has begun", "segmented/view.go",
		"return s.tidy(ctx, c)", "return nil", inSegmented, "Sweep_finishes",
	},
	{
		"a sweep leaves units where none are to rest", "segmented/transfer.go",
		"for i := c.live; i < len(now); i++ {", "for i := len(now); i < len(now); i++ {", inSegmented, "Sweep_finishes",
	},
	{
		"processes do not hear of a resize", "segmented/transfer.go",
		"s.config.CompareAndSwap(c, now)", "", inSegmented, "Resize_reaches",
	},
	{
		"a sweep goes by what was recorded at first", "segmented/transfer.go",
		"	return now, nil\n}\n\n// balance", "	return c, nil\n}\n\n// balance", inSegmented, "Resize_reaches",
	},
	{
		"orders of one buyer lie in many buckets", "segmented/bucket.go",
		"if c.limit > 0 {", "if false {", inSegmented, "Limit_holds",
	},

	// The core.
	{
		"what was said before a call answers it", "internal/lease/keeper.go",
		"said == taken && !w.queued && q.refusedAt < w.began", "false", inLease, "TestAWordFrom",
	},
	{
		"the first deadline counts from the reply", "internal/lease/watch.go",
		"took: now, deadline: terms.deadline(sent, ", "took: now, deadline: terms.deadline(now, ", inLease, "",
	},
	{
		"a renewed deadline counts from the reply", "internal/lease/watch.go",
		"t.deadline = max(t.deadline, t.terms.deadline(sent, t.terms.Lease))", "t.deadline = max(t.deadline, t.terms.deadline(now, t.terms.Lease))", inLease, "",
	},
	{
		"a grant that is too late is returned", "internal/lease/keeper.go",
		"case err == nil && grant.Taken && now < terms.deadline(sent, max(terms.Lease, terms.MinHold)):", "case err == nil && grant.Taken:", inLease, "",
	},
	{
		"renewal goes on after the release", "internal/lease/watch.go",
		"	k.heap.remove(t)\n	l := t.lane\n", "	l := t.lane\n", inLease, "",
	},
	{
		"the context ends after the release", "internal/lease/unlock.go",
		"	m.cancel(fault.ErrNotHeld)\n\n	k.mu.Lock()", "	defer m.cancel(fault.ErrNotHeld)\n\n	k.mu.Lock()", inLease, "",
	},
	{
		"a failed renewal ends the watchdog", "internal/lease/watch.go",
		"			t.renewAt = again\n", "			t.renewAt = max(again, t.deadline)\n", inLease, "",
	},
	{
		"'not yours' is not believed", "internal/lease/watch.go",
		"			lost = append(lost, k.loseAll(t, reason, nil)...)\n			continue\n		}\n		if t.recheck {", "			_ = reason\n		}\n		if t.recheck {", inLease, "",
	},
	{
		"a grant to a caller who left stays taken", "internal/lease/keeper.go",
		"		k.surplus(surplus)\n		k.finished()\n	}\n	return done", "		k.finished()\n	}\n	return done", inLease, "",
	},
	{
		"a caller who leaves keeps a grant of that moment", "internal/lease/keeper.go",
		"	w.hold, w.left = nil, true\n", "	w.left = true\n", inLease, "",
	},
	{
		"nobody looks for late copies", "internal/lease/condemned.go",
		"	if k.closed {\n		return\n	}\n	heap.Push(&k.dead.waiting, condemnedOwner{store: s, owner: owner, since: at, due: at})", "	return\n	heap.Push(&k.dead.waiting, condemnedOwner{store: s, owner: owner, since: at, due: at})", inLease, "",
	},
	{
		"the hub's Look is ignored", "internal/lease/keeper.go",
		"	q.woken = true\n	if q.tenure == nil {", "	q.woken = s == Message\n	if q.tenure == nil {", inLease, "",
	},
	{
		"a signal during an attempt is lost", "internal/lease/keeper.go",
		"		q.lookAt = now + k.sleepFor(w.request.Store, grant.Left)\n", "		q.lookAt, q.woken = now+k.sleepFor(w.request.Store, grant.Left), false\n", inLease, "",
	},
	{
		"a leaver does not wake the next", "internal/lease/keeper.go",
		"	q.wakeHead()\n	stop := k.settleQueue(q)\n	k.mu.Unlock()\n	if stop != nil {\n		stop()\n	}\n	if surplus != nil {\n		k.spawn",
		"	stop := k.settleQueue(q)\n	k.mu.Unlock()\n	if stop != nil {\n		stop()\n	}\n	if surplus != nil {\n		k.spawn", inLease, "",
	},
	{
		"handoff without a bound", "internal/lease/unlock.go",
		"int(t.passes) >= terms.Handoff, now-t.took >= handoffTime,", "false,", inLease, "",
	},
	{
		"others that listen are not let go first", "internal/lease/unlock.go",
		"q.alone = heard >= 0 && heard <= own", "q.alone = heard >= own-1", inLease, "",
	},
	{
		"those that are not counted are never let go first", "internal/lease/unlock.go",
		"	return due\n", "	return false\n", inLease, "",
	},
	{
		"the answer to a release cuts a backoff short", "internal/lease/unlock.go",
		"	if q.parting == t { // the head", "	if true { // the head", inLease, "",
	},
	{
		"the next waiter waits for the answer to a release however long", "internal/lease/watch.go",
		"		if at <= now {\n			delete(k.partings, q)\n			q.wakeHead()", "		if at <= now {\n			delete(k.partings, q)", inLease, "",
	},
	{
		"whoever succeeds at once does so for ever", "internal/lease/unlock.go",
		"w == nil || w.once || now >= q.humbleAt {", "w == nil || w.once {", inLease, "",
	},
	{
		"a successor's deadline counts from the reply", "internal/lease/unlock.go",
		"k.answered(next, sent, now, ", "k.answered(next, now, now, ", inLease, "",
	},
	{
		"a grant to a successor who left stays taken", "internal/lease/unlock.go",
		"			k.surplus(surplus)\n			k.finished()\n		}()", "			k.finished()\n		}()", inLease, "",
	},
	{
		"a fixed lease is handed over", "internal/lease/unlock.go",
		"case w == nil, w.once, terms.Fixed, terms.MinHold > 0,", "case w == nil, w.once, terms.MinHold > 0,", inLease, "",
	},
	{
		"lost contexts end after the successor may ask", "internal/lease/watch.go",
		"			m.cancel(h.loss.Cause)\n", "			defer m.cancel(h.loss.Cause)\n", inLease, "",
	},
	{
		"Close releases before contexts end", "internal/lease/close.go",
		"	k.tellLost(ended)\n	for _, h := range ended {", "	defer k.tellLost(ended)\n	for _, h := range ended {", inLease, "",
	},
	{
		"lanes mix lease lengths", "internal/lease/watch.go",
		"laneID{r.Store.Renewer(), terms.Lease}", "laneID{r.Store.Renewer(), 30 * time.Second}", inLease, "",
	},
	{
		"a hold is kept for the context of a lease that was unlocked", "internal/lease/hold.go",
		"	if h.witness = nil; h.members != nil {", "	if h.witness == nil && h.members != nil {", inLease, "",
	},
	{
		"batches of one round trip have one another's outcomes", "internal/core/run.go",
		"r.conclude(ctx, result, locks[from:to], out[from:to])", "r.conclude(ctx, result, locks[from:to], out[:to-from])", inCore, "TestRenew",
	},
	{
		"a batch that is refused is not split", "internal/core/run.go",
		"len(locks) == 1 || !refused(err)", "true", inCore, "",
	},
	{
		"a run that fails fails the whole batch", "scripts/batch.go",
		"  local ok, reply = pcall(run, k, a)\n", "  local ok, reply = true, run(k, a)\n", inScripts, "TestAcquire",
	},
	{
		"a way that once seemed long has room for many for ever", "internal/core/combine.go",
		"clear || c.looks%lookEvery == 0 {", "clear {", inCore, "TestCombine",
	},
	{
		"a command that failed says how long the way is", "internal/core/combine.go",
		"			began = time.Time{}\n", "", inCore, "TestCombine",
	},
	{
		"callers who share a script get the first one's reply", "internal/core/combine.go",
		"e.reply, e.err = replies[i], replies[i].Error()", "e.reply, e.err = replies[i/2], replies[i/2].Error()", inCore, "TestCombine",
	},
	{
		"a combined script that is refused fails for all", "internal/core/combine.go",
		"case refused(err):", "case false:", inCore, "TestCombine",
	},
	{
		"a burst is never forgotten", "internal/core/combine.go",
		"(c.crowd - c.callers + 7) / 8", "(c.crowd - c.callers) / 8", inCore, "Combine_aBurst",
	},
	{
		"who left before it was sent does not know that nothing was done", "internal/core/combine.go",
		"\t\treturn errNotSent\n", "\t\treturn e.ctx.Err()\n", inCore, "Combiner_who",
	},
	{
		"a way that seemed long stays long", "internal/core/combine.go",
		"case c.trip == 0 || trip < c.trip:", "case c.trip == 0:", inCore, "SeemedLong",
	},
	{
		"everybody waits for a command that does not come back", "internal/core/combine.go",
		"			if c.landings == 0 {\n", "			if false {\n", inCore, "TestCombine",
	},
	{
		"no look after the subscription is there again", "pubsub/link.go",
		"	g.channel.notify(Look)\n", "	_ = Look\n", inPubsub, "",
	},
	{
		"re-entrance by a lease that has ended", "handle.go",
		"			if l.Valid() {\n				return l\n			}\n			return nil", "			return l", inReentrant, "TestReentrance",
	},
	{
		"Unlock obeys a context that has ended", "internal/lease/unlock.go",
		"	answer, err := t.store.Release(ctx, ", "	answer, err := t.store.Release(p.values, ", inReentrant, "TestUnlock|TestWait",
	},
}
