// Package dialect has the parts that the SQL dialects of the lease engine share: the names of their tables, their
// bounds, and the errors and helpers for queue tables that another system has created.
package dialect
