// Package scripts has every script that the toolkit runs in Redis: one .lua file
// each, with a header that says its keys, arguments and reply and why running it
// twice does no harm, and one Go variable each.
//
// The package can be imported, for instance to load the scripts ahead of time,
// but makes no promise of compatibility: arguments and replies change with the
// library that sends them.
package scripts
