# SPDX-License-Identifier: GPL-2.0
#
# Counts the results of a KTAP stream: prints "passed failed skipped", and each
# failure on stderr.  Only innermost results count; a failed outer result whose
# inner ones all passed counts as well, as does a plan that was not kept.

function depth_of(line) {
	match(line, /^ */)
	return int(RLENGTH / 2)
}

function fault(text) {
	failed++
	print "  " text >"/dev/stderr"
}

function close_plan(d) {
	if ((d in plan) && plan[d] != got[d])
		fault("planned " plan[d] " results, got " got[d] (d + 0 ? " (nested)" : ""))
	delete plan[d]
	got[d] = 0
}

BEGIN { passed = failed = skipped = 0 }

{ sub(/\r$/, "") }

/^ *1\.\.[0-9]+/ {
	d = depth_of($0)
	text = $0
	sub(/^ *1\.\./, "", text)
	any = 1
	if (!(d in plan) && got[d] > 0) {
		# The plan stands behind its results.
		plan[d] = text + 0
		close_plan(d)
		next
	}
	close_plan(d)
	plan[d] = text + 0
	if (plan[d] == 0) {
		if (text ~ /# *SKIP/) skipped++
		else fault("empty plan")
	}
	next
}

/^ *(not )?ok( |$)/ {
	d = depth_of($0)
	any = 1
	got[d]++
	outer = inner[d]
	if (outer) close_plan(d + 1)
	name = $0
	sub(/^ */, "", name)
	bad = name ~ /^not ok/
	if (name ~ /# *SKIP/) {
		if (!outer) skipped++
	} else if (name ~ /# *TODO/) {
		if (!outer) skipped++
	} else if (bad) {
		if (!outer || !innerbad[d]) fault(name)
	} else if (!outer) {
		passed++
	}
	inner[d] = innerbad[d] = 0
	for (i = 0; i < d; i++) {
		inner[i] = 1
		if (bad) innerbad[i] = 1
	}
	next
}

/^ *Bail out!/ { fault($0) }

END {
	for (d in plan) close_plan(d)
	if (!any) fault("no results at all")
	print passed, failed, skipped
}
