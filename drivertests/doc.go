// Package drivertests sends in transactions of PostgreSQL that other libraries have begun, through
// the outbox of an endpoint. It is a module of its own, so that the library does not depend on
// theirs.
package drivertests
