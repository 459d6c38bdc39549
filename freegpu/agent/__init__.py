"""What runs beside the job, on any platform: standard library only, Python 3.9 and newer.

Shipped as one `.pyz`. `wire` and `stores` are read by both sides; the rest only runs in a session.
"""
