"""Files that take effect at the next boot: scripts, units and the gate.

``Host`` bundles the routes backend, systemd and the file layout.
"""

# The modules, in the order in which a run uses them:
#
#     host, layout         what a task works on: routes, units, and the paths of all files
#     parts, render        which files a config needs, and their texts
#     gate                 the gate's drop-ins, and the list of scripts that the gate runs
#     plan                 which files and units a run changes: the plan, made without any change
#     installation         the order in which a plan is carried out, and its rollback
#     _switch              the replacement of the gate's scripts and list, all at once
#     manifest             the record of what is installed
#     trial_timer          the end of a trial of routes: its file, and the systemd timer
#     systemd, systemctl   the protocol for systemd, and its implementation
#     scripts/             what runs at boot and before each start: gate.sh runs the listed scripts
