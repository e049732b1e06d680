"""What a project may include: `path("singlecron/", include("django_singlecron.urls"))`."""

from django.urls import path

from . import trigger, views

app_name = "django_singlecron"

urlpatterns = [path("check/", views.check, name="check"), path("run/<path:job>/", trigger.run, name="run")]
