# The numbers of one metrics.jsonl (stdin) for scripts/plot.sh.
#   OUT=FILES METRICS="NAME ..." SMOOTH=N TOGETHER=N awk -f scripts/plot.awk <metrics.jsonl
#
# Writes what is to be drawn to OUT.NAME: "step value" each line, of TOGETHER lines of the input
# only the smallest and the largest value, so that no spike is lost; "step NaN" where a curve
# breaks. OUT.skipped has the skipped steps with their loss scale. loss, grad_norm and tokens_per_s
# are means of the last SMOOTH steps. Prints for each metric: its name, how many finite values,
# lowest and highest step, smallest and largest value. A line without its end is one that is just
# being written, and left out.

BEGIN {
    OFMT = "%.9g"
    out = ENVIRON["OUT"]; together = ENVIRON["TOGETHER"]; smooth = ENVIRON["SMOOTH"]
    metrics = split(ENVIRON["METRICS"], names, " ")
    for (i = 1; i <= metrics; i++) {
        keys[i] = "\"" names[i] "\":"
        smoothed[i] = smooth > 1 && names[i] ~ /^(loss|grad_norm|tokens_per_s)$/
    }
}

# The number that text begins with; "" where it is not finite or beyond what can be drawn.
function number(text) {
    if (text !~ /^ *-?[0-9]/ || text + 0 > 1e100 || text + 0 < -1e100) return ""
    return text + 0 > 1e-100 || text + 0 < -1e-100 ? text + 0 : 0
}

# The mean with the values before, of metric i.
function mean(i, value,    place, n) {
    n = ++known[i]
    place = i SUBSEP n % smooth
    sum[i] += value - ring[place]
    ring[place] = value
    return sum[i] / (n < smooth ? n : smooth)
}

function write(i, file) {
    file = out "." names[i]
    if (any[i]) {
        if (low_at[i] <= high_at[i]) print low_at[i], low[i] >file
        if (low_at[i] != high_at[i]) print high_at[i], high[i] >file
        if (low_at[i] > high_at[i]) print low_at[i], low[i] >file
    }
    if (broken[i]) print broken[i], "NaN" >file
    any[i] = broken[i] = 0
}

function take(i, value) {
    if (!any[i] || value < low[i]) { low[i] = value; low_at[i] = step }
    if (!any[i] || value > high[i]) { high[i] = value; high_at[i] = step }
    any[i] = 1
    if (!finite[i]++) smallest[i] = largest[i] = value
    if (value < smallest[i]) smallest[i] = value
    if (value > largest[i]) largest[i] = value
}

!/^[{] *"step": *[0-9].*[}][ \t\r]*$/ { next }
{
    step = number(substr($0, index($0, ":") + 1, 24))
    if (step == "" || step > 1e15) next
    stretch = int(NR / together)
    for (i = 1; i <= metrics; i++) {
        at = index($0, keys[i])
        if (!at) continue
        if (stretch != now[i]) write(i)
        now[i] = stretch
        if (!(i in first) || step < first[i]) first[i] = step
        if (step > last[i]) last[i] = step
        value = number(substr($0, at + length(keys[i]), 32))
        if (value == "") broken[i] = step
        else take(i, smoothed[i] ? mean(i, value) : value)
    }
    value = number(substr($0, index($0, "\"loss_scale\":") + 13, 32))
    if (index($0, "\"skipped\": true") && value != "") {
        skipped++
        print step, value >(out ".skipped")
    }
}

END {
    for (i = 1; i <= metrics; i++) {
        write(i)
        printf "%s %d %d %d %.9g %.9g\n", names[i], finite[i], first[i], last[i],
               smallest[i], largest[i]
    }
    printf "skipped %d 0 0 0 0\n", skipped
}
