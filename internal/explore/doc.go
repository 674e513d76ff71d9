// Package explore runs the real scripts through all interleavings of small
// scenarios, and compares them with a model that a reader can check by eye.
//
// A [Scenario] is a few clients with a short program each, and how many faults
// and how much passing of time a schedule may have. At every point of a schedule
// [Explore] tries everything that may come next: a client sends its next command,
// and it is executed and answered, or the answer is lost, or the command, or it is
// late, so that a copy arrives at any later point, or it is slow, so that the
// client waits while others go on; a client gives up; a condemned owner is swept;
// time passes, and leases end. The clients keep the rules of package lease.
//
// After each step:
//
//   - the script answers what the model answers, and the server holds what the
//     model holds, key for key, TTLs included;
//   - what [Kind.Check] knows of one run of a script is so, and the same command
//     again changes nothing;
//   - clients that believe to hold the lock may hold it together, and have it;
//   - tokens rise from grant to grant;
//
// and at the end, after the last late copy and a last sweep, nobody has the lock
// who does not hold it.
//
// It is a breadth-first search over states, so the schedule of a [Violation] is
// one of the shortest. Two schedules that lead to the same state go on together
// and are counted as two; a script is run once for each state of the server that
// it meets. So millions of schedules take a second, and none is left out.
//
// [Walk] runs schedules one by one, taken at random, for a server that is slow to
// put into a state: the real one.
//
// What no schedule shows: whether anybody hears of a release, and what a script
// does when memory is full or a key is of another type. Tests of package scripts
// do.
//
// [Stock] does the same for the scripts of a stock, which are compared with package
// stockmodel. [Buckets] does it for two buckets of one: units go from the one to the
// other while buyers fetch them, look for them, and are told that they are sold out,
// as package segmented does it, script by script.
//
// Another lock kind implements [Kind] and brings its scenarios; time, faults and
// clients are the same for all. Servers are in the tests, because the library
// does not import miniredis.
package explore
