package main

var inRwlock = []string{"./rwlock"}

// rwMutants are those of the read-write lock.
var rwMutants = []mutant{
	{
		"rwlock: a reader comes in beside a writer", lua + "rwlock_read_acquire.lua",
		"elseif found[1] == 'write' then", "elseif false then", inScripts, "TestRwlock",
	},
	{
		"rwlock: readers do not stand back", lua + "rwlock_read_acquire.lua",
		"elseif ARGV[6] == '1' then", "elseif false then", inRwlock, "TestPreference",
	},
	{
		"rwlock: a repeated read acquire stands back", lua + "rwlock_read_acquire.lua",
		"if found[2] then\n  refused = nil -- it has the lock\nelseif ARGV[3]", "if ARGV[3]", inScripts, "TestRwlock",
	},
	{
		"rwlock: readers whose turn it is stand back", lua + "rwlock_read_acquire.lua",
		"if last[2] and redis.call('SISMEMBER', KEYS[5], ARGV[4]) == 0 then", "if last[2] then", inRwlock, "TestTurn",
	},
	{
		"rwlock: nobody notes who waits to read", lua + "rwlock_read_acquire.lua",
		"redis.pcall('SADD', KEYS[4], ARGV[4])", "local _ = 0", inRwlock, "TestTurn_lasts",
	},
	{
		"rwlock: a nested read comes in without its writer", lua + "rwlock_read_acquire.lua",
		"if found[1] ~= 'write' or not found[3] then", "if false then", inScripts, "TestRwlock",
	},
	{
		"rwlock: a short read lease cuts a long one", lua + "rwlock_read_acquire.lua",
		"if left < lease then", "if true then", inExplore, "ReadWrite",
	},
	{
		"rwlock: a writer comes in beside readers", lua + "rwlock_write_acquire.lua",
		"if not mine and left ~= -2 then", "if not mine and left ~= -2 and mode ~= 'read' then", inExplore, "ReadWrite",
	},
	{
		"rwlock: a writer takes the turn of readers", lua + "rwlock_write_acquire.lua",
		"  left = redis.call('PTTL', KEYS[3])", "  left = -2", inRwlock, "TestTurn",
	},
	{
		"rwlock: a refusal needs memory", lua + "rwlock_write_acquire.lua",
		"redis.pcall('ZADD'", "redis.call('ZADD'", inScripts, "TestRwlock_outOfMemory",
	},
	{
		"rwlock: a repeated write acquire mints a token", lua + "rwlock_write_acquire.lua",
		"if mine and last and tonumber(last) > 0 then", "if false then", inScripts, "TestRwlock",
	},
	{
		"rwlock: a read release goes by the lock's last field", lua + "rwlock_read_release.lua",
		"if rest == 1 then", "if rest <= 2 then", inExplore, "ReadWrite",
	},
	{
		"rwlock: a read release tells no writer that waits", lua + "rwlock_read_release.lua",
		"    told = tonumber(last[2]) >", "    told = nil and tonumber(last[2]) >", inScripts, "TestRwlock",
	},
	{
		"rwlock: a write release forgets the writer's own readers", lua + "rwlock_write_release.lua",
		"if redis.call('HLEN', KEYS[1]) == 1 then", "if true then", inScripts, "TestRwlock",
	},
	{
		"rwlock: a write release has no turn follow", lua + "rwlock_write_release.lua",
		"redis.call('RENAME', KEYS[2], KEYS[3])", "redis.call('DEL', KEYS[2])", inScripts, "TestRwlock",
	},
	{
		"rwlock: a downgrade writes first what needs memory", lua + "rwlock_downgrade.lua",
		"redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])))\n", "", inScripts, "TestRwlock",
	},
	{
		"rwlock: a downgrade forgets the hold's key", lua + "rwlock_downgrade.lua",
		"    redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])", "    local _ = 0", inExplore, "ReadWrite",
	},
	{
		"rwlock: a repeated downgrade is refused", lua + "rwlock_downgrade.lua",
		"if not found[1] and not found[2] then", "if not found[1] then", inScripts, "TestRwlock",
	},
	{
		"rwlock: a renewal goes by the lock alone", lua + "rwlock_read_renew.lua",
		"elseif left == -2 then", "elseif false then", inScripts, "TestRwlock",
	},
	{
		"rwlock: a renewal forgets the lock", lua + "rwlock_read_renew.lua",
		"redis.call('PEXPIRE', KEYS[2 * i - 1], ARGV[n + i])", "local _ = 0", inExplore, "ReadWrite",
	},
	{
		"rwlock: a prune takes the living out", lua + "rwlock_prune.lua",
		"if ends == -2 then", "if true then", inScripts, "TestRwlock",
	},
	{
		"rwlock: a prune judges by keys that it was not given", lua + "rwlock_prune.lua",
		"if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then", "if true then", inScripts, "TestRwlock",
	},
	{
		"rwlock: a prune lowers the TTL under a hold", lua + "rwlock_prune.lua",
		"elseif rest == live and last < endless then", "elseif live > 0 and last < endless then", inExplore, "ReadWrite",
	},
	{
		"rwlock: force takes the other mode's lock", lua + "rwlock_force.lua",
		"if mode ~= ARGV[1] then", "if not mode then", inScripts, "TestRwlock",
	},
	{
		"rwlock: while a slot moves the hold is renewed and the lock is not", "rwlock/kind.go",
		"	if err != nil || v != lease.Mine {\n", "	if true {\n", inRwlock, "TestCluster_noWriter",
	},
	{
		"rwlock: a moving slot keeps readers from leaving", "rwlock/kind.go",
		"	r := scripts.RwlockReadRelease.Exec(ctx, s.env.Client, []string{s.key, hold, s.waiting()}, args)\n	if core.Moving(r.Error()) {",
		"	r := scripts.RwlockReadRelease.Exec(ctx, s.env.Client, []string{s.key, hold, s.waiting()}, args)\n	if false {",
		inRwlock, "TestCluster_noWriter",
	},
	{
		"rwlock: a reader may become a writer", "rwlock/lock.go",
		"w.write.Held(ctx) == nil && w.read.Held(ctx) != nil", "false", inRwlock, "TestUpgrade",
	},
	{
		"rwlock: dead readers are not looked for", "rwlock/kind.go",
		"		if len(left) > 0 {\n			gone, soonest", "		if false {\n			gone, soonest", inRwlock, "TestScenario_aDead|TestProcess_many",
	},
	{
		"rwlock: a reader that leaves does not look behind", "rwlock/kind.go",
		"	if len(left) > 0 {\n		s.env.Background", "	if false {\n		s.env.Background", inRwlock, "TestScenario_java",
	},
	{
		"rwlock: nobody hears that a writer does not wait any longer", "internal/lease/shared.go",
		"				err := store.Withdraw(ctx)\n", "				_ = store\n				err := error(nil)\n", inLease, "",
	},
	{
		"rwlock: who comes later joins readers that are in", "internal/lease/shared.go",
		"		if other != w && w.shares(other) {\n			other.hold", "		if false {\n			other.hold", inLease, "",
	},
	{
		"rwlock: fixed leases share an owner", "internal/lease/shared.go",
		"w.request.Shared && !w.request.Terms.Fixed &&", "w.request.Shared &&", inLease, "",
	},
	{
		"rwlock: the first of several readers releases for all", "internal/lease/unlock.go",
		"	if t.hold != nil { // others of this process share it\n", "	if false {\n", inLease, "",
	},
	{
		"rwlock: one reader's loss by its own terms is not only its own", "internal/lease/watch.go",
		"	if h.tenure.leave(h); h.tenure.hold == nil {\n", "	if h.tenure.leave(h); true {\n", inLease, "",
	},
	{
		"rwlock: writers hand over while readers of the process wait", "internal/lease/unlock.go",
		"first != nil && first.length > 0", "first != nil && first.length < 0", inLease, "",
	},
	{
		"rwlock: a downgrade ends the writer's context too late", "internal/lease/convert.go",
		"	m.cancel(fault.ErrNotHeld)\n", "	defer m.cancel(fault.ErrNotHeld)\n", inLease, "",
	},
	{
		"rwlock: a downgrade counts its lease from the reply", "internal/lease/convert.go",
		"next = k.granted(w, sent, now, Grant{})", "next = k.granted(w, now, now, Grant{})", inLease, "",
	},
	{
		"rwlock: a downgrade that failed leaves what it did", "internal/lease/convert.go",
		"		k.condemn(r.Store, t.owner, now)\n", "", inLease, "",
	},
	{
		"rwlock: late copies of a downgrade are not looked for", "internal/lease/convert.go",
		"tainted: doubt}", "tainted: doubt && false}", inLease, "",
	},
	{
		"rwlock: a reader that was lost stays in the lock", "internal/lease/watch.go",
		"		k.sweepOnce(t.store, t.owner, t.deadline)\n", "", inLease, "",
	},
	{
		"rwlock: a shared tenure is handed over", "internal/lease/unlock.go",
		"	if h.request.Shared { // the head may have", "	if false { // the head may have", inLease, "",
	},
	{
		"rwlock: a writer is handed over beside reads that are a part of it", "internal/lease/unlock.go",
		"	if t.bound {", "	if false {", inRwlock, "TestReader_under",
	},
}
